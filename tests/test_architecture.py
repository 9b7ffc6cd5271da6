"""What holds for the tree as a whole."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ["llm", "ingest", "rag"]
HEAVY = {"torch", "vllm", "chromadb", "transformers", "sentence_transformers", "kreuzberg", "rjieba", "fastapi", "ray"}
HEAVY |= {"matplotlib", "ir_measures", "numpy", "scipy"}
MODULES = sorted(path for package in ORDER for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names of all modules that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


def imported_modules(path: Path) -> set[str]:
    """Full names of what `from … import …` takes, as modules or out of modules."""
    froms = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom))
    return {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    later = ORDER[ORDER.index(package) + 1 :]
    assert not imported(path) & {*later, "tests"}


def test_vllm_is_imported_through_its_names_only() -> None:
    assert not [path for path in MODULES if "vllm" in imported(path)]
    naming = {str(path.relative_to(ROOT)) for path in MODULES if "llm.vllm_names" in imported_modules(path)}
    starting = {f"starting/{name}" for name in ("child", "launch", "life", "start")}
    knowing = starting | {"adapters", "engine", "output", "reading/parsers", "translation"}
    assert naming == {f"llm/{name}.py" for name in knowing}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize(
    "command", [["rag", "--help"], ["rag", "eval", "--help"], ["rag", "ingest", "--help"], ["ingest", "--help"]]
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    module, *arguments = command
    code = (
        f"import runpy, sys; sys.argv = {['groundwell', *arguments]!r}\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        f"except SystemExit as end: assert not end.code, end.code\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[0].startswith("usage:")
    assert done.stdout.splitlines()[-1] == "[]"


def test_ingest_runs_without_rag() -> None:
    code = "import ingest.__main__, ingest.pipeline, ingest.store, sys; print([m for m in sys.modules if m == 'rag'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_what_reads_files_imports_nothing_that_takes_long() -> None:
    code = "import ingest.worker, ingest.prepare, llm.tokens, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not set(done.stdout.split()) & {*HEAVY, "langchain_core", "pydantic", "numpy", "tokenizers", "requests"}
