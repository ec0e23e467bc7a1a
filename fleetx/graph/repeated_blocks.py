"""The blocks that a model repeats, such as the layers of a transformer."""

from collections import Counter

from torch import nn


def repeated_blocks(model: nn.Module) -> tuple[str, ...]:
    """Paths of submodules of one class that hold most of the parameters together.

    Empty for a model that repeats nothing but single layers.
    """
    sizes, paths = Counter[type[nn.Module]](), dict[type[nn.Module], list[str]]()
    for path, module in model.named_modules():
        kind = type(module)
        if not path or not any(True for _ in module.children()) or kind in _LISTS:
            continue
        own = _size(module)
        if not any(path.startswith(f"{other}.") for other in paths.get(kind, ())):
            sizes[kind] += own
            paths.setdefault(kind, []).append(path)
    repeated = {kind: sizes[kind] for kind, found in paths.items() if len(found) > 1}
    if not repeated:
        return ()
    most = max(repeated.values())
    # Stages hold blocks, and blocks hold layers: those that repeat most often of the large ones.
    large = [tuple(paths[kind]) for kind, size in repeated.items() if size >= _LARGE * most]
    return max(large, key=len)


def _size(module: nn.Module) -> int:
    """Of what it computes with: a table of words belongs to no block."""
    own = sum(parameter.numel() for parameter in module.parameters())
    words = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    tables = {table for part in words for table in part.parameters()}  # none on another rank
    return own - sum(table.numel() for table in tables)


_LARGE = 0.8
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
