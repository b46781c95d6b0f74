"""The adapter for a tensor, or a dict or list of tensors and numbers, that a script gives to `ctx.keep`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from workerlib.keeping.adapter import Adapter
from workerlib.keeping.kept_errors import UnfitStateError
from workerlib.keeping.pieces import SavedTensors
from workerlib.keeping.plain_values import NESTING_MAX, from_plain, to_plain, too_deep


class KeptContainer(Adapter):
    """Adapts a tensor, or a dict or list of tensors and numbers.

    It is restored in place, since the script goes on to use the object that it has given to `ctx.keep`.
    """

    changes_late = False  # a script may change it anywhere in a step: `small_state` finds out where

    def __init__(self, name: str, content: Any) -> None:
        self._name = name
        self._root = {name: content}
        self._is_tensor = isinstance(content, torch.Tensor)
        self._first = frozenset(self.targets())
        """The paths of the tensors that there were at `keep`."""
        self._tensor_count = len(self._first)

    def big_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name."""
        yield from _tensors(self._root, "")

    def values(self) -> Any:
        """Return all but the tensors as JSON; None for a tensor."""
        before, self._tensor_count = self._tensor_count, len(self.targets())
        if self._tensor_count != before:
            self.size_changes += 1
        return None if self._is_tensor else to_plain(_without_tensors(self._root[self._name]), self._name)

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Make the tensors that the script adds only during training, such as a mean of weights.

        Raises `UnfitStateError` for one that was sharded: the script has to make it before `keep`.
        """
        self.load_values(values)
        known, prefix = dict(self.big_tensors()), f"{self._name}."
        for path in saved.names:
            if path.startswith(prefix) and path not in known:
                if saved.was_sharded(path):
                    raise UnfitStateError(f"{path} was sharded, and is not there when keep() is called")
                tensor = saved.new(path, device)
                _put(self._root[self._name], path.removeprefix(prefix), tensor)

    def load_values(self, values: Any) -> None:
        """Load the values; tensors stay the same objects."""
        if not self._is_tensor:
            present, kept = self._root[self._name], from_plain(values)
            if isinstance(present, list) is not isinstance(kept, list):
                raise UnfitStateError(f"{self._name} is a {type(present).__name__}, and was kept as another kind")
            _merge(present, kept)

    def discard_step(self) -> None:
        """Remove the tensors added to dicts since `keep`; the next `keep` makes those of the step that it restores."""
        if not self._is_tensor:
            _drop_tensors(self._root[self._name], self._name, self._first)


def _tensors(container: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors within a dict or list, by their paths from the root."""
    if depth > NESTING_MAX:
        raise too_deep(path)
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in pairs:
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, torch.Tensor):
            yield here, value
        elif isinstance(value, (dict, list)):
            yield from _tensors(value, here, depth + 1)


def _drop_tensors(container: Any, path: str, first: frozenset[str]) -> None:
    """Remove the tensors from all dicts in a dict or list, except for those with the paths `first`."""
    for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        here = f"{path}.{key}"
        if isinstance(value, (dict, list)):
            _drop_tensors(value, here, first)
        elif isinstance(container, dict) and isinstance(value, torch.Tensor) and here not in first:
            del container[key]


def _put(container: Any, path: str, tensor: torch.Tensor) -> None:
    """Put a tensor at its path in a dict or list that has everything but its tensors.

    Keys of dicts may have dots themselves, so a path is compared with the keys and not split at its dots. If it begins
    with the key of a dict or list, the rest is the path within that; the first such key counts.
    """
    if isinstance(container, list):
        head, _, rest = path.partition(".")
        if rest:
            _put(container[int(head)], rest, tensor)
        else:
            container[int(head)] = tensor
        return
    for key, value in container.items():
        if isinstance(value, (dict, list)) and path.startswith(f"{key}."):
            _put(value, path.removeprefix(f"{key}."), tensor)
            return
    container[next((key for key in container if str(key) == path), path)] = tensor


def _without_tensors(value: Any) -> Any:
    """Return a dict or list without its tensors.

    In a list, None takes the place of a tensor, so that the other items keep their numbers. In a dict it does so only
    under a key that is no str: a path has that key as text, and `_put` finds the key itself by this entry.
    """
    if isinstance(value, dict):
        return {
            key: None if isinstance(item, torch.Tensor) else _without_tensors(item)
            for key, item in value.items()
            if not (isinstance(item, torch.Tensor) and isinstance(key, str))
        }
    if isinstance(value, list):
        return [None if isinstance(item, torch.Tensor) else _without_tensors(item) for item in value]
    return value


def _merge(present: Any, kept: Any) -> None:
    """Give a dict or list its kept contents in place; its tensors stay the same objects."""
    if isinstance(present, list):
        del present[len(kept) :]
        present.extend([None] * (len(kept) - len(present)))
    else:
        for key in [key for key, value in present.items() if key not in kept and not isinstance(value, torch.Tensor)]:
            del present[key]
    pairs = list(kept.items() if isinstance(kept, dict) else enumerate(kept))
    for key, value in pairs:
        old = present.get(key) if isinstance(present, dict) else present[key]
        if isinstance(old, torch.Tensor):
            continue
        if isinstance(old, (dict, list)) and type(old) is type(value):
            _merge(old, value)
        else:
            present[key] = value
