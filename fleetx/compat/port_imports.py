"""The imports of a script, as ``fleetx compat port`` reads and writes them."""

import ast


def imported(tree: ast.Module) -> set[str]:
    """Names that imports of Paddle bind."""
    return {
        binds(alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and of_paddle(node)
        for alias in node.names
    }


def taken(tree: ast.Module) -> set[str]:
    """Names that a script binds otherwise, such as ``io`` by ``import io``."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
            case ast.Import() | ast.ImportFrom() if not of_paddle(node):
                found |= {binds(a) for a in node.names} - {"torch", "fleetx"}
    return found


def of_paddle(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a statement imports something of Paddle's."""
    modules = (
        [node.module or ""]
        if isinstance(node, ast.ImportFrom)
        else [alias.name for alias in node.names]
    )
    return any(module.partition(".")[0] in {"paddle", "paddlenlp"} for module in modules)


def binds(alias: ast.alias) -> str:
    """The name that an import makes known."""
    return alias.asname or alias.name.partition(".")[0]


def import_of(node: ast.Import | ast.ImportFrom, kept: list[ast.alias]) -> str:
    """The statement with these of its names alone."""
    names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in kept)
    if isinstance(node, ast.Import):
        return f"import {names}"
    return f"from {node.module} import {names}"
