"""Locks a builder process in before it hands a stranger's text to a compiler: few files, no network, bounded resources.

Reading the source cannot prove that a compiler will open no file, so the kernel has to see to it: Landlock (Linux 5.13)
for files and TCP, a seccomp filter (x86-64) for sockets and other processes' memory. Where the kernel lacks one of
them, that part is left out and `lock_in` says so; the checks of source and machine code stand alone then.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import evo

BYTES = 4 << 30  # address space of a builder; an ordinary build takes well under one
FILE_BYTES = 256 << 20
NICENESS = 10  # the device's worker gets its core at once, however many builders there are
CPU_S = 600.0  # of one build: far above the time limit that the parent keeps, for builders whose parent has died

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_RIGHTS_BY_ABI = ((1, 0x1FFF), (2, 1 << 13), (3, _TRUNCATE))  # device ioctls, of ABI 5, stay as they are
_NET, _SCOPES = 3, 3  # bind and connect by TCP (ABI 4); abstract sockets, signals to others (ABI 6)
_NO_NEW_PRIVILEGES, _SECCOMP = 38, 22
_DENIED = {"x86_64": (41, 101, 310, 311, 425)}  # socket, ptrace, process_vm_readv and writev, io_uring_setup
_AUDIT_ARCH = {"x86_64": 0xC000003E}
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/alternatives",
    "/etc/localtime", "/dev/urandom", "/dev/zero", "/proc/cpuinfo", "/proc/meminfo", "/proc/self", "/proc/sys/vm",
    "/sys/devices/system/cpu", "/sys/fs/cgroup",
)  # fmt: skip


def limit_resources() -> None:
    """A source that makes the compiler eat memory, disk or time ends this process and no other.

    Not the number of processes: that limit counts all of the user's.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(used + CPU_S)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def lock_in(writable: Iterable[Path]) -> str:
    """From now on this process and its children open only the system's files, Python's, and those below `writable`.

    Cannot be undone. Returns "" or what this kernel could not do.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    lacking = [_lock_files(libc, [*writable]), _lock_calls(libc)]
    return "; ".join(filter(None, lacking))


def readable() -> list[Path]:
    """What a compiler and Python need: system folders, Python's, PATH's, and wherever loaded libraries come from."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    package = Path(evo.__file__).resolve().parent
    checkout = package.parent  # of a checkout only the package, not what else lies there
    modules = [Path(path) for path in sys.path if path and Path(path).resolve() not in (checkout, Path.cwd())]
    loaded = [
        Path(next(iter(module.__path__)))
        for name, module in list(sys.modules.items())
        if "." not in name and name != "evo" and list(getattr(module, "__path__", ()))
    ]
    ours = [package, *(link.resolve() for link in package.iterdir() if link.is_symlink())]
    named = [os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")]
    folders = [Path(part) for value in named for part in value.split(os.pathsep) if os.path.isabs(part)]
    mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    libraries = {Path(path).parent for path in mapped if ".so" in path}
    found = {*map(Path, _SYSTEM), *map(Path, prefixes), *modules, *loaded, *ours, *folders, *libraries}
    private = {Path("/"), Path("/tmp"), Path("/var/tmp"), Path(os.path.expanduser("~"))}
    return sorted(path for path in found if path.exists() and path.resolve() not in private)


def _lock_files(libc: ctypes.CDLL, writable: Iterable[Path]) -> str:
    abi = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return "this kernel has no Landlock: a compiler is not kept from other files"
    rights = sum(bits for least, bits in _RIGHTS_BY_ABI if abi >= least)
    attributes = struct.pack("<QQQ", rights, _NET, _SCOPES)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    look = _EXECUTE | _READ_FILE | _READ_DIR
    rules = [*((path, look) for path in readable()), *((path, rights) for path in writable)]
    for path, allowed in [*rules, (Path("/dev/null"), _READ_FILE | _WRITE_FILE)]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed &= rights if path.is_dir() else rights & _FILE_RIGHTS
        libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("<Qi", allowed, place), 0)
        os.close(place)
    done = libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return "" if done == 0 else f"Landlock: {os.strerror(ctypes.get_errno())}"


def _lock_calls(libc: ctypes.CDLL) -> str:
    machine = platform.machine()
    if machine not in _DENIED:
        return f"no system call filter for {machine}: sockets are not refused"
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06  # of classic BPF: load a word, jump if, return
    denied = _DENIED[machine]
    refuse = len(denied) + 1  # instructions from the first comparison to the refusal
    program = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (give, 0, 0, 0x0005_0000 | 1), (load, 0, 0, 0)]
    program.append((above, refuse, 0, 0x4000_0000))  # the numbers of another calling convention
    program += [(equal, refuse - 1 - at, 0, number) for at, number in enumerate(denied)]
    program += [(give, 0, 0, 0x7FFF_0000), (give, 0, 0, 0x0005_0000 | 13)]  # allow; EACCES
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program), ctypes.addressof(code)))
    if libc.prctl(_SECCOMP, 2, ctypes.byref(header), 0, 0):
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return ""
