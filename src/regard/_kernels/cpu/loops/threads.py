"""Loops over tasks, on the calling thread or on the threads that torch itself computes with.

Numba has pools of its own, but torch's workers spin for milliseconds after each of their loops, and a second pool then
shares its cores with them. So the OpenMP runtime that torch is linked to is asked to run our function on its team
(`GOMP_parallel`, which GNU's and LLVM's runtimes have). Where there is no such function, and in a forked child, whose
parent's team is gone, the calling thread does it all.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import cfunc, njit, typeof, types
from numba._dispatcher import compute_fingerprint
from numba.core import cgutils, event
from numba.extending import intrinsic

from regard._kernels import dropout_mask

__all__ = ["EXACT", "FINITE", "INNER", "Threaded"]


def _prepare_cache() -> bool:
    """Drop code compiled from other sources, and return True if there is a folder for compiled code.

    Numba compiles a function again if its own file changes, but not if those of the functions and types within it do.
    """
    try:
        kept = Path(str(njit(cache=True)(_prepare_cache).stats.cache_path))
    except RuntimeError:
        return False
    sources = [Path(dropout_mask.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    mark = kept / f"{sha256(repr(facts).encode()).hexdigest()[:16]}.sources"
    with suppress(OSError):  # of another process that does the same
        if not mark.exists():
            for path in (*kept.glob("*.sources"), *kept.glob("*.nbi")):
                path.unlink(missing_ok=True)
            mark.touch()
    return True


EXACT: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "cache": _prepare_cache(),
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},  # NaN and inf keep their meaning
}
# For what only compiled code calls: nothing to call it from Python, which takes as long to compile.
INNER: dict[str, Any] = {**EXACT, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Without inf among the numbers LLVM may divide by a reciprocal's estimate and one step of Newton's, twice as fast.
FINITE: dict[str, Any] = {**INNER, "fastmath": {*EXACT["fastmath"], "ninf"}}
_SMALL = 300_000  # nanoseconds of work below which waking a second thread costs more than it brings


class Threaded:
    """A loop ``body(first, step, *arguments)`` over every step-th task, divided among threads by its first task.

    Called with the nanoseconds of work that it has about, and the arguments.
    """

    def __init__(self, body: Callable[..., None]) -> None:
        self.body = njit(**EXACT)(body)
        self.callbacks: dict[bytes, Any] = {}  # by the types of the arguments

    def __call__(self, nanoseconds: float, *arguments: Any) -> None:
        threads = torch.get_num_threads() if nanoseconds > _SMALL and _Runtime.fork else 1
        if threads == 1:
            self.body(0, 1, *arguments)
            return
        packed = (_Runtime.number, threads, *arguments)
        key = compute_fingerprint(packed)  # tells types apart as typeof does, in 2 microseconds instead of 120
        callback = self.callbacks.get(key)
        if callback is None:
            callback = self.callbacks[key] = _callback(self.body, typeof(packed))
        _launch(_Runtime.fork, callback.address, threads, packed)


class _Runtime:
    """Addresses of the two functions of OpenMP's runtime: run on a team, and the number of the thread in it."""

    fork = number = 0


class _Notice(event.Listener):
    """Warns, before the first of these loops is compiled, that this takes some seconds."""

    def on_start(self, compilation: Any) -> None:  # not reached where compiled code is found on disk
        if not compilation.data["dispatcher"].py_func.__module__.startswith(__package__):
            return
        event.unregister(_COMPILATION, self)
        often = "once for this installation" if EXACT["cache"] else "each time, until NUMBA_CACHE_DIR names a folder"
        logging.getLogger("regard").warning("compiling the CPU kernels of attention, %s: some seconds", often)

    def on_end(self, compilation: Any) -> None:
        pass


_COMPILATION = "numba:compile"
event.register(_COMPILATION, _Notice())


def _find_runtime() -> None:
    try:
        library = ctypes.CDLL(torch._C.__file__)
        fork, number = library.GOMP_parallel, library.omp_get_thread_num
    except (AttributeError, OSError):
        return
    _Runtime.fork, _Runtime.number = (ctypes.cast(found, ctypes.c_void_p).value or 0 for found in (fork, number))


def _after_fork() -> None:
    _Runtime.fork = 0


_find_runtime()
if hasattr(os, "register_at_fork"):  # where a process can fork
    os.register_at_fork(after_in_child=_after_fork)


def _callback(body: Any, kind: Any) -> Any:
    """Compile the function that each thread of the team runs, given the address of the packed arguments."""

    @intrinsic
    def unpack(typing, pointer):
        def generate(context, builder, signature, values):
            value = builder.load(builder.bitcast(values[0], ir.PointerType(context.get_value_type(kind))))
            context.nrt.incref(builder, kind, value)
            return value

        return kind(pointer), generate

    @cfunc(types.void(types.voidptr))
    def run(pointer):
        packed = unpack(pointer)
        body(_number(packed[0]), packed[1], *packed[2:])

    return run


@intrinsic
def _number(typing, address):
    """Call omp_get_thread_num."""

    def generate(context, builder, signature, values):
        function = ir.PointerType(ir.FunctionType(ir.IntType(32), []))
        return builder.sext(builder.call(builder.inttoptr(values[0], function), []), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def _fork(typing, fork, callback, threads, packed):
    """Call GOMP_parallel(callback, address of the packed arguments, threads, 0)."""

    def generate(context, builder, signature, values):
        anything, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [anything, anything, number, number]).as_pointer()
        slot = builder.bitcast(cgutils.alloca_once_value(builder, values[3]), anything)
        arguments = [builder.inttoptr(values[1], anything), slot, builder.trunc(values[2], number), number(0)]
        builder.call(builder.inttoptr(values[0], function), arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, packed), generate


@njit(nogil=True, cache=EXACT["cache"])
def _launch(fork, callback, threads, packed):
    _fork(fork, callback, threads, packed)
