"""Import a released package without what it needs to run.

The code that builds an argument parser sits among imports of torch, CUDA kernels and web servers.
Here every module that cannot be found is replaced by one whose attributes are empty classes, so
that the released code itself runs and says which arguments it has. Modules of the package that is
read are never replaced, except its compiled parts and those that are named.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol

from pydantic_core import core_schema

# Asked for only to see whether they exist: the released code has its own way without them.
ABSENT = frozenset({"triton", "cupy", "vllm_flash_attn", "amdsmi", "libtpu", "ray", "colorful"})


def _decorated(function: Any) -> Any:
    """Give back what is decorated, with what torch's decorators add to it."""
    if isinstance(function, FunctionType):
        function.__dict__.setdefault("register_fake", lambda each: each)
    return function


class _HollowMeta(type(Protocol)):  # type: ignore[misc]  # so that protocols can be bases too
    """Classes whose every attribute exists; instances answer in the same way."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return hollow(name)

    def __setitem__(cls, _key: object, _value: object) -> None:
        """Forget it."""

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return False

    def __contains__(cls, _item: object) -> bool:
        return False

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: object
    ) -> "_HollowMeta":
        made: _HollowMeta = super().__new__(cls, name, bases, body)
        return made

    def __init__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: object
    ) -> None:
        super().__init__(name, bases, body)

    def register(cls, *_what: object, **_options: object) -> Any:
        """Take what `AutoConfig.register` and the like are given."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # Used as a decorator, `@hollow` or `@hollow(option)(function)`: keep what is decorated,
        # for it may be a part of the code that is read.
        if len(args) == 1 and not kwargs and callable(args[0]):
            return _decorated(args[0])
        return super().__call__(*args, **kwargs)


class Hollow(metaclass=_HollowMeta):
    """Stands for a class, function or value of a module that is not installed."""

    def __init_subclass__(cls, **_options: object) -> None:
        """Take the options of any base class, such as msgspec's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take and forget any arguments."""

    def __class_getitem__(cls, _item: object) -> type["Hollow"]:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        # Requests name types of other packages; no request is parsed here.
        return core_schema.any_schema()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return hollow(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return _decorated(args[0])
        return hollow("value")

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, _key: object) -> "Hollow":
        return self

    def __setitem__(self, _key: object, _value: object) -> None:
        """Forget it."""

    def __enter__(self) -> "Hollow":
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave quietly."""


def _same(self: Any, *_operands: object) -> Any:
    return self


for _operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "xor"):
    for _side in ("", "r"):
        setattr(Hollow, f"__{_side}{_operator}__", _same)
        setattr(_HollowMeta, f"__{_side}{_operator}__", _same)
for _comparison in ("lt", "le", "gt", "ge"):
    setattr(Hollow, f"__{_comparison}__", lambda *_: False)
    setattr(_HollowMeta, f"__{_comparison}__", lambda *_: False)


def hollow(name: str) -> type[Hollow]:
    """Make an empty class of this name."""
    made: type[Hollow] = _HollowMeta(name, (Hollow,), {"__module__": "hollow"})
    return made


class HollowModule(ModuleType):
    """A module that has every attribute."""

    def __init__(self, name: str, folder: str = "") -> None:
        super().__init__(name)
        self.__path__ = [folder] if folder else []
        self.__version__ = "99.0.0"
        self.__file__ = f"{folder}/__init__.py"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = hollow(name)
        setattr(self, name, value)
        return value


class HollowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for modules: `first` for parts of the package itself, else for what nobody has."""

    def __init__(self, reading: "Reading", *, first: bool) -> None:
        self.reading = reading
        self.first = first

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        wanted = self.reading.hollows(fullname) if self.first else self.reading.lacks(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        folder = self.reading.root.joinpath(*spec.name.split("."))
        return HollowModule(spec.name, str(folder) if folder.is_dir() else "")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@dataclass(frozen=True)
class Reading:
    """Which part of a released package is run, and which is replaced.

    root: the folder that the wheel was unpacked into.
    package: the name of the package in it.
    hollow: its modules, with all below them, that are replaced: compiled, or speaking to those.
    kept: modules below `hollow` that are run all the same.
    """

    root: Path
    package: str
    hollow: frozenset[str]
    kept: frozenset[str] = frozenset()

    def hollows(self, fullname: str) -> bool:
        """Whether this module of the package is replaced though it is there."""
        parts = fullname.split(".")
        parents = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return bool(parents & self.hollow) and fullname not in self.kept

    def lacks(self, fullname: str) -> bool:
        """Whether a module that was not found is replaced.

        A missing module of the package that is read stays missing: the released code then takes
        the path that it takes for optional parts.
        """
        top = fullname.partition(".")[0]
        return top not in sys.stdlib_module_names | ABSENT | {self.package}


def install(reading: Reading) -> None:
    """Make the package importable in this process, with stand-ins for what it lacks."""
    sys.path.insert(0, str(reading.root))
    sys.meta_path.insert(0, HollowFinder(reading, first=True))
    sys.meta_path.append(HollowFinder(reading, first=False))
    version_of = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return version_of(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            return HollowModule(distribution_name).__version__

    importlib.metadata.version = version
