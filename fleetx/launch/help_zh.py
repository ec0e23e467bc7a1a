"""What `fleetrun --help` says in Chinese, and how it is set in lines. Errors are in English."""

import argparse
import re
import unicodedata
from collections.abc import Mapping

from typing_extensions import override

LANGUAGES = ("en", "zh")

USAGE = "fleetrun [选项] train.py [train.py 的参数]"
DESCRIPTION = "启动分布式 PyTorch 任务：每张卡或每个 CPU worker 一个进程。"
EXAMPLES = """示例：
  fleetrun train.py --lr 0.1                          本机所有的卡，没有卡则为一个 CPU 进程
  fleetrun --gpus 0,1,2,3 train.py                    四张卡
  fleetrun --nproc_per_node 2 --gpus none train.py    两个 CPU 进程
  fleetrun --ips 10.0.0.1,10.0.0.2 train.py           两台机器，各执行同样的命令
  fleetrun --nnodes 2 --master 10.0.0.1:6379 train.py 两台机器，在一个地址会合
  fleetrun --server_num 2 --worker_num 2 train.py     在一台机器上试用参数服务器
  fleetrun --server_num auto train.py                 按本机的核数选择 server 数和 worker 数
  fleetrun --paddle --gpus 0,1 train.py               Paddle Fleet 的脚本，无需改动
"""

GROUPS = {
    "processes of this machine": "本机的进程",
    "several machines, by a list of addresses": "多机，给出地址列表",
    "several machines, by a meeting point": "多机，在一个地址会合",
    "parameter servers": "参数服务器",
    "general": "通用",
}
"""Title of a group of flags, in both languages."""

FLAGS = {
    "--gpus": "使用的卡，每张卡一个进程；'none' 表示使用 CPU（默认：所有的卡，没有卡则为 CPU）",
    "--nproc_per_node": "本机的进程数（默认：卡的数量；使用 CPU 时为 1）",
    "--ips": "所有机器；顺序决定 rank",
    "--node_ip": "本机在列表中的地址（默认：POD_IP，没有则自动查找）",
    "--started_port": "worker 的起始端口号；启动器在比它小一的端口会合（默认：6170）",
    "--use_paddlecloud": "从 PADDLE_TRAINERS、POD_IP、PADDLE_TRAINER_ID 和 PADDLE_PORT 获取列表",
    "--nnodes": "机器数：N 或 MIN:MAX（或设置 PADDLE_NNODES）",
    "--master": "会合的地址，位于其中一台机器上（或设置 PADDLE_MASTER）",
    "--meeting_point": "不启动任何训练，只为一个任务的各台机器保留会合的地址，"
    "它们用 --master 指定该地址："
    "这样任何一台机器都不依赖其他机器",
    "--rank": "本机的序号；0 是 master 所在的机器（默认：会合时决定）",
    "--server_num": "本机的 server 数；'auto' 按本机的核数选择，"
    "没有给出 --worker_num 时 worker 数也一并选择",
    "--worker_num": "本机的 worker 数；'auto' 按本机的核数和 server 数选择",
    "--servers": "所有机器上的所有 server",
    "--workers": "所有机器上的所有 worker",
    "--http_port": "启动器会合的端口（默认：比第一台机器的最小端口小一）",
    "--metrics_port": "本机第一个 server 的指标，供 Prometheus 读取，路径为 /metrics；"
    "其余 server 依次使用后面的端口（默认：不提供）",
    "--log_dir": "workerlog.N 和 serverlog.N 所在的目录（默认：log）",
    "--max_restart": "任务失败后重新启动的次数，所有进程一起重启（默认：0）；"
    "使用 fleet.CheckpointManager "
    "的脚本从最后一个检查点继续",
    "--timeout": "等待其他机器的时间（默认：60）",
    "--stuck_after": "各 rank 等待某个停住不动的 rank 超过这一时间，就结束任务（默认："
    "FLEETX_TIMEOUT 的值；"
    "没有设置则只指出它）",
    "--checkpoint_seconds": "使用 fleet.CheckpointManager 的脚本每隔多久保存一次，"
    "这也是重启时最多丢失的时间"
    "（默认：以脚本的设置为准，没有则为 600）",
    "--grace": "收到 SIGTERM 之后，这样的脚本保存最后一个检查点可以使用的时间；此时退出码为 75，"
    "表示请求重启"
    "（默认：25）",
    "--watch": "在运行期间提供一个展示任务的网页，并打印其地址（需要 fleetx[watch]）；"
    "fleetx watch DIR "
    "可以随时提供同样的网页",
    "--watch_at": "同样的网页，使用其他机器可以访问的地址；打印的链接中带有 token，"
    "没有 token 什么也看不到"
    "（默认：127.0.0.1 和一个空闲端口）",
    "--dry_run": "打印谁会在哪里运行，不启动任何进程",
    "--verbose": "打印所有选项以及一个进程的环境变量",
    "--paddle": "脚本导入 paddle，由 fleetx.compat 为这一次运行提供",
    "-m": "运行模块：fleetrun -m package.train",
    "--lang": "本帮助的语言：en 或 zh（默认：由 LC_ALL、LC_MESSAGES 或 LANG 决定）；错误信息为英文",
    "--help": "显示本帮助并退出",
}
"""Flag -> what it does."""


def preferred(environ: Mapping[str, str]) -> str:
    """The language that the environment asks for, by the rules of POSIX."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    asked = next((environ[name] for name in names if environ.get(name)), "")
    return "zh" if asked.lower().startswith("zh") else "en"


def help_of(parser: argparse.ArgumentParser) -> str:
    """A parser's help in Chinese; what has no translation stays as it is."""
    parser.usage, parser.description, parser.epilog = USAGE, DESCRIPTION, EXAMPLES
    parser.formatter_class = _Formatter
    for group in parser._action_groups:
        group.title = GROUPS.get(group.title or "", group.title)
    for action in parser._actions:
        texts = (FLAGS[flag] for flag in action.option_strings if flag in FLAGS)
        action.help = next(texts, action.help)
    return parser.format_help().replace("usage: ", "用法：", 1)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines between Chinese characters, each of which takes two columns."""

    @override
    def _split_lines(self, text: str, width: int) -> list[str]:
        return lines(text, width)


def lines(text: str, width: int) -> list[str]:
    """Text in lines of at most so many columns, unless a word is longer than one."""
    broken = [""]
    for part in re.findall(r"[!-~]+[，。；：、）]*|（?[^!-~][，。；：、）]*", text):
        if broken[-1] and _columns(broken[-1] + part.rstrip()) > width:
            broken.append("")
        broken[-1] += part if broken[-1] else part.lstrip()
    return [line.rstrip() for line in broken]


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in text)
