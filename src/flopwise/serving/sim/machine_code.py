"""The compiled simulator: compiled once, kept as an object file, and loaded without the compiler."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import CFUNCTYPE, byref, c_int32, c_int64, c_void_p
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

from flopwise.errors import SpecError
from flopwise.files import write_whole
from flopwise.serving.sim import layout

COMPILED = ("compiler", "core", "cost", "layout", "policies", "result", "setup")
"""Modules whose text decides what is compiled."""
SUFFIX = ".o"


def cache_folder(*, shared: bool = False) -> Path | None:
    """The folder of compiled code: the user's cache, or a temporary folder; None where neither can be written.

    `shared`: as of `core`.

    Named by the text of what is compiled: file times, which numba goes by, are alike in wheels of different versions.
    A folder of somebody else is not used: what lies there would be run.
    """
    here = Path(__file__).parent
    text = b"".join((here / f"{name}.py").read_bytes() for name in COMPILED)
    name = f"flopwise-{hashlib.sha256(text).hexdigest()[:16]}" + "-shared" * shared
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")

    def user() -> Path:
        return Path(given) if given else (Path(home) if home else Path("~/.cache").expanduser()) / "flopwise"

    for parent in (user, lambda: Path(tempfile.gettempdir())):
        try:
            folder = parent() / name  # neither a home nor a temporary folder need be there
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
        except (OSError, RuntimeError):
            continue
        if own and os.access(folder, os.W_OK):
            return folder
    return None


def is_compiled(folder: Path | None) -> bool:
    """True if compiled code is kept in a `cache_folder`, so that `core` reads it."""
    return folder is not None and any(folder.rglob("*" + SUFFIX))


class ObjectCode(NamedTuple):
    """An object file, and the name of the function in it."""

    function: str
    code: bytes

    @classmethod
    def from_file(cls, path: Path | None) -> ObjectCode | None:
        """The code that is kept at `path`; None where there is none, or it is not whole."""
        if path is None:
            return None
        try:
            head, code = path.read_bytes().split(b"\n", 1)
            function, digest = head.decode("ascii").split(" ", 1)
        except (OSError, ValueError):
            return None
        return cls(function, code) if digest == hashlib.sha256(code).hexdigest() else None

    def write(self, path: Path) -> None:
        """Keep it at `path`."""
        head = f"{self.function} {hashlib.sha256(self.code).hexdigest()}\n"
        write_whole(path, head.encode() + self.code)


def _file_name() -> str:
    """The name of code for this processor, by this compiler."""
    from llvmlite import binding  # noqa: PLC0415 - takes 40 ms

    made_for = hashlib.sha256(f"{binding.get_process_triple()} {binding.get_host_cpu_features().flatten()}".encode())
    for name in ("numba", "llvmlite"):  # asked of neither, as one would have to be imported
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        made_for.update((Path(spec.origin).parent / "_version.py").read_bytes())
    return f"{binding.get_host_cpu_name()}-{made_for.hexdigest()[:16]}{SUFFIX}"


@contextmanager
def _first_compilation(folder: Path | None, on_compile: Callable[[], None] | None) -> Iterator[None]:
    """Of processes that need the same code for the first time one compiles it, and the others wait and read it."""
    if is_compiled(folder):
        yield
        return
    if on_compile:
        on_compile()
    with ExitStack() as until_kept:
        with suppress(ImportError, OSError):  # where there are no locks, each compiles for itself
            import fcntl  # noqa: PLC0415 - not everywhere

            if folder is not None:
                lock = until_kept.enter_context((folder / "compiling").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _new_code(*, shared: bool) -> ObjectCode:
    """The code of `core.drive`."""
    layout.SHARED = shared
    name = "flopwise.serving.sim.core"
    core_spec = find_spec(name)
    assert core_spec is not None
    assert core_spec.origin is not None
    spec = spec_from_file_location(name + "_shared" * shared, core_spec.origin)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # numba looks functions' modules up there
    collects = gc.isenabled()
    gc.disable()  # a compiler's trees are all in use until it ends: looking through them takes a tenth of its time
    try:
        spec.loader.exec_module(module)
    finally:
        if collects:
            gc.enable()
    return ObjectCode(*module.CODE)


def _callable(code: ObjectCode) -> Callable[..., None]:
    """The function of an object file, with the arguments of `core.drive`: addresses, and a number.

    Source: numba, calling conventions: a status comes back, places for the result and for an error go before the
    arguments, and tuples are handed over as their parts.
    """
    from llvmlite import binding  # noqa: PLC0415 - as above

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code.code))
    engine.finalize_object()
    addresses = [c_void_p] * (4 + len(layout.Tables._fields))
    function = CFUNCTYPE(c_int32, *addresses, c_int64)(engine.get_function_address(code.function))

    def drive(*given: int) -> None:
        result, error = c_void_p(), c_void_p()
        status = function(byref(result), byref(error), *given)
        assert status == 0, "nothing in it raises"

    drive.engine = engine  # type: ignore[attr-defined]  # the code lives as long as it
    return drive


@cache
def core(on_compile: Callable[[], None] | None = None, *, shared: bool = False) -> Callable[..., None]:
    """The compiled `core.drive`; `on_compile` is called before it is compiled for the first time.

    `shared`: for prompts that share beginnings, sessions and stores of prefixes. Without them half as much is compiled,
    and what is left runs faster.
    """
    folder = cache_folder(shared=shared)
    path = None if folder is None else folder / _file_name()
    with _first_compilation(folder, on_compile):
        code = ObjectCode.from_file(path)
        if code is None:
            code = _new_code(shared=shared)
            if path is not None:
                with suppress(SpecError):  # the disk is full
                    code.write(path)
    return _callable(code)
