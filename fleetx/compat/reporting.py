"""The report of ``fleetx compat check``, for people."""

from fleetx.compat.checking import Report, Verdict


def told(report: Report) -> str:
    """A script's names, one a line, and what is wrong below them."""
    if report.error:
        return report.error
    width = max((len(verdict.name) for verdict in report.names), default=0)
    lines = [_line(verdict, width) for verdict in report.names]
    wrong = [
        f"{report.file}:{problem.line}: {problem.text}"
        for verdict in report.names
        for problem in verdict.problems
    ]
    return "\n".join([*lines, *wrong, _count(report)])


def _line(verdict: Verdict, width: int) -> str:
    mark = "missing" if not verdict.covered else "keyword" if verdict.problems else "covered"
    return f"{mark}  {verdict.name:{width}}  line {', '.join(map(str, verdict.lines))}"


def _count(report: Report) -> str:
    covered = sum(verdict.covered and not verdict.problems for verdict in report.names)
    return f"{report.file}: {len(report.names)} names of Paddle, {covered} covered"
