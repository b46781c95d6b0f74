"""The rules about imports: who may know whom, and what a pure module may know."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile

from tests.support.source import Finding, Source

PURE_STDLIB = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "heapq",
        "ipaddress",
        "itertools",
        "math",
        "operator",
        "re",
        "signal.Signals",
        "statistics.median",
        "statistics.median_low",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
    }
)
"""Modules, and names out of modules, that depend on nothing but their arguments."""

PURE_PACKAGES = {
    "coordinatord/core": ("coordinatord.core", "coordinatord.hints", "coordinatord.protocol", "msgspec"),
    "coordinatord/hints": ("coordinatord.hints", "coordinatord.protocol", "msgspec"),
    "coordinatord/protocol": ("coordinatord.protocol", "msgspec", "threading.Lock"),
    "nodeclient/core": ("nodeclient.core", "coordinatord.hints", "coordinatord.protocol", "msgspec"),
}
"""The packages that do no IO, and what each of them may import beside `PURE_STDLIB`."""

Floors = tuple[tuple[str, ...], ...]

KERNEL_FLOORS: Floors = (("values",), ("state",), ("queries",), ("transitions",))
"""The floors of `coordinatord/core/rounds`, lowest first."""

KERNEL_EDGES = ("effects", "events", "policy")
"""The other modules of the kernel. Any floor may import them, and they import no floor but the lowest."""

SERVER_FLOORS: Floors = (
    ("counters", "driver"),
    ("sessions",),
    ("reads",),
    ("http", "metrics", "page"),
    ("app", "standby"),
)
"""The floors of `coordinatord/server`, lowest first: what carries messages knows nothing of what shows them."""

FLOORS = {"coordinatord/core/rounds": KERNEL_FLOORS, "coordinatord/server": SERVER_FLOORS}
"""The packages with floors: a file may import from its own floor and from lower ones. What is no floor is an edge."""

WINGS = ("judging", "keeping", "watching")

TOP = ("admin", "journal", "leases", "machine", "own_end", "registry")
"""The modules above the kernel and the wings: the one entry to the core, and what only that uses."""

APART = {
    **{f"coordinatord/core/{module}.py": ("coordinatord.core.shown",) for module in ("__init__", *TOP)},
    **{
        f"coordinatord/core/{package}": tuple(
            f"coordinatord.core.{other}" for other in (*TOP, *WINGS, "shown") if other != package
        )
        for package in ("rounds", *WINGS)
    },
}
"""What a package of `coordinatord/core` must not import: the kernel can do without its wings, each wing without the
others, and all of them without what is shown, and without the modules above them."""

TORCHRUN_PACKAGE = "nodeclient/torchrun"
"""The backend of torchrun's rendezvous: the one package of nodeclient that lives in torchrun's process."""


LATE_PACKAGES = ("workerlib/keeping", "workerlib/reuse")
"""The packages of workerlib that are loaded only when a script uses them, and may import torch when they are."""


def impure_imports(source: Source) -> Iterator[Finding]:
    """Find imports of what is not known to be pure; types count too, for they bind as code does."""
    [own] = [own for package, own in PURE_PACKAGES.items() if source.is_in(package)]
    for imported in source.imports:
        if not imported.within(*PURE_STDLIB, *own):
            yield imported.line, f"imports {imported.module}"


def imports_back_up(source: Source) -> Iterator[Finding]:
    """Find imports from a higher floor than the file's own; an edge belongs to the lowest."""
    [(package, floors)] = [(package, floors) for package, floors in FLOORS.items() if source.is_in(package)]
    name = source.path.relative_to(package).parts[0].removesuffix(".py")
    own = next((number for number, floor in enumerate(floors) if name in floor), 0)
    higher = [f"{package.replace('/', '.')}.{above}" for floor in floors[own + 1 :] for above in floor]
    for imported in source.imports:
        if imported.within(*higher):
            yield imported.line, f"imports {imported.module}"


def imports_apart(source: Source) -> Iterator[Finding]:
    """Find imports of a package that the file's own package has to do without."""
    [apart] = [apart for package, apart in APART.items() if source.is_in(package)]
    for imported in source.imports:
        if imported.within(*apart):
            yield imported.line, f"imports {imported.module}"


def coordinator_imports(source: Source) -> Iterator[Finding]:
    """Find imports that would tie the daemon to the hosts that it serves."""
    for imported in source.imports:
        if imported.within("nodeclient", "workerlib", "torch", "numpy"):
            yield imported.line, f"imports {imported.module}"


def node_imports(source: Source) -> Iterator[Finding]:
    """Find imports of the coordinator's or the worker's insides, and those that take seconds.

    torchrun's backend may import torch: it is loaded by torchrun, which has done so already, and never by nodeclient.
    """
    shared = ["coordinatord.protocol", "coordinatord.runtime", "coordinatord.hints"]
    allowed = [*shared, "workerlib.contract", "workerlib.gloo", "workerlib.responder"]
    if source.is_in(TORCHRUN_PACKAGE):
        allowed.append("torch")
    for imported in source.imports:
        foreign = imported.within("coordinatord", "workerlib", "torch", "numpy") and not imported.within(*allowed)
        if foreign or (imported.within("nodeclient.torchrun") and not source.is_in(TORCHRUN_PACKAGE)):
            yield imported.line, f"imports {imported.module}"


def worker_imports(source: Source) -> Iterator[Finding]:
    """Find imports that a training script would have to install, or to pay for unused.

    A module of `workerlib/integrations` may import the library that it is named after, and nobody else imports it.
    """
    if source.is_in("workerlib/contract"):
        own = ("workerlib.contract", *sys.stdlib_module_names)
        yield from ((each.line, f"imports {each.module}") for each in source.imports if not each.within(*own))
        return
    library = [source.path.stem] if source.is_in("workerlib/integrations") else []
    is_late = source.is_in(*LATE_PACKAGES)
    for imported in source.imports:
        if imported.within("torch", "workerlib.keeping", "workerlib.reuse"):
            if not imported.deferred and not is_late:
                yield imported.line, f"imports {imported.module} when it is loaded"
        elif imported.within("workerlib.integrations") or not imported.within(
            "workerlib", *library, *sys.stdlib_module_names
        ):
            yield imported.line, f"imports {imported.module}"


def neighbours(sources: Collection[Source]) -> Mapping[str, Mapping[str, set[str]]]:
    """Return, for each folder with Python code, which of its modules and packages imports which others of them."""
    modules = {source.path.with_suffix("").parts for source in sources if source.is_python}
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for source in sources:
        if not source.is_python:
            continue
        own = source.path.with_suffix("").parts
        for imported in source.imports:
            other = _module_of(imported.module, modules)
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False)))
            if 0 < common < min(len(own), len(other)):
                found["/".join(own[:common])][own[common]].add(other[common])
    return found


def cycle_among(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return modules and packages that import each other in a circle; none if there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module_of(name: str, modules: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the module that an imported name is, or lies in; nothing for one that is not of the tree."""
    parts = tuple(name.split("."))
    while parts and parts not in modules and (*parts, "__init__") not in modules:
        parts = parts[:-1]
    return parts if parts in modules or not parts else (*parts, "__init__")
