"""What numba does with the functions of `core`: the passes that they need, and machine code of the whole alone.

Of numba's passes those are left out that look for what `core` has not: closures, literals to unroll, array expressions,
functions that are inlined as Python. Every function but the outermost is compiled into its callers and nothing is
loaded, so that the others need no code of their own. Imported only to compile.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import AOTCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
)
from numba.core.untyped_passes import DeadBranchPrune, FixupArgs, IRProcessing, TranslateByteCode

OUTERMOST = "drive"
"""The function of `core` that all others are compiled into."""


class ObjectLibrary(AOTCodeLibrary):  # type: ignore[misc]  # numba has no types
    """An object file in the making, which nothing is loaded from."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Functions are optimized in their callers, not once more by themselves."""
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as numba's own does

    def _optimize_final_module(self) -> None:
        """The outermost is optimized with all others in it, once: nothing in it counts references."""
        if self.name == OUTERMOST:
            passes, builder = self._codegen._module_pass_manager()  # noqa: SLF001 - as above
            passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(NativeLowering):  # type: ignore[misc]  # as above
    """numba's lowering, of functions that nothing but others of them calls."""

    _name = "simulator_lowering"

    def run_pass(self, state: Any) -> bool:
        """As of numba; the function for Python is a stand-in, which callers know it by."""
        changed = super().run_pass(state)
        stand_in: list[object] = []
        state["cr"] = state["cr"]._replace(cfunc=stand_in.append)
        state.targetctx.insert_user_function(stand_in.append, state["cr"].fndesc, [state.library])
        return bool(changed)


PASSES = (
    TranslateByteCode,
    FixupArgs,
    IRProcessing,
    DeadBranchPrune,  # what a constant of the module rules out is not typed
    NopythonTypeInference,
    IRLegalization,
    AnnotateTypes,
    Lowering,
    NoPythonBackend,
)


class Compiler(CompilerBase):  # type: ignore[misc]  # as above
    """numba's compiler with `PASSES`."""

    def define_pipelines(self) -> list[PassManager]:
        """The one list of passes."""
        state = self.state
        state.flags.no_compile = True
        state.library = ObjectLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        passes = PassManager("simulator")
        for step in PASSES:
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]
