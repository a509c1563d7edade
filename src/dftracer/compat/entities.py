"""Entities: named things (a sample, an archive, a model) and which events used or made them.

An entity is identified by its type and key; its id is the same in every process and language, so that the
traces of a workflow can be combined. They are metadata records in the trace, and args of the events:

    CM entity            {"id","type","key","store","uri"}      once per entity and process
    CM entity_type       {"type","role","description"}
    CM entity_relation   {"relation","subject","object"}
    args of an event     "used": ["<id>", …], "generated": […], "invalidated": […], "updated": […]

Ids in records are 16 hexadecimal digits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from dftracer import _core

EntityID = int
_OF_ENTITIES = 16  # from here on relations are between two entities, below from an event to one
# Not the offset of FNV's authors, but the one used for other writers' ids.
_FNV_START, _FNV_PRIME, _MASK = 1469598103934665603, 0x100000001B3, (1 << 64) - 1


class EntityStore(IntEnum):
    """Where an entity is stored."""

    MEMORY = 0
    GPU_MEMORY = 1
    LOCAL_DISK = 2
    PARALLEL_FS = 3
    BURST_BUFFER = 4
    OBJECT_STORE = 5
    DATABASE = 6
    NETWORK = 7
    OTHER = 8


class EntityRole(IntEnum):
    """The role of a type of entity in the workflow."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2
    INTERMEDIATE = 3
    PARAMETER = 4
    REFERENCE = 5


class EntityRelation(IntEnum):
    """Event to entity below 16, entity to entity from 16 on."""

    USED = 0
    GENERATED = 1
    INVALIDATED = 2
    UPDATED = 3
    DERIVED_FROM = 16
    REVISION_OF = 17
    CONTAINS = 18
    PART_OF = 19
    SPECIALIZATION_OF = 20
    ALTERNATE_OF = 21
    DEPENDS_ON = 22


_written: set[tuple[str, str]] = set()


def _write_again() -> None:
    """A forked child writes its own trace, which must name what it refers to."""
    _written.clear()


os.register_at_fork(after_in_child=_write_again)


def entity_id(type: str, key: str) -> int:
    """FNV-1a over type, the separator 0x1f and key."""
    value = _FNV_START
    for byte in f"{type}\x1f{key}".encode("utf-8", "surrogateescape"):
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def declare_entity(type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
    """The id of an entity, written to the trace once; 0 while nothing is recorded."""
    if not _core.active():
        return 0
    type, key = str(type), str(key)
    number = entity_id(type, key)
    if (type, key) not in _written:
        _written.add((type, key))
        _record("entity", id=_shown(number), type=type, key=key, store=_word(EntityStore, store), uri=uri)
    return number


def declare_entity_type(type: str, role: Any = EntityRole.UNKNOWN, description: str = "") -> None:
    """What a type of entity is."""
    if _core.active():
        _record("entity_type", type=str(type), role=_word(EntityRole, role), description=description)


def relate_entities(relation: Any, subject: int, object: int) -> None:
    """Relate two entities; relations of events, and invalid entities (0), are ignored."""
    if _core.active() and int(relation) >= _OF_ENTITIES and subject and object:
        word = _word(EntityRelation, relation)
        _record("entity_relation", relation=word, subject=_shown(subject), object=_shown(object))


def relation_args(relations: Mapping[Any, Iterable[int]] | None) -> dict[str, list[str]]:
    """The args that describe an event's relations."""
    out: dict[str, list[str]] = {}
    for relation, entities in (relations or {}).items():
        ids = [_shown(e) for e in entities if e]
        if int(relation) < _OF_ENTITIES and ids:
            out[_word(EntityRelation, relation)] = ids
    return out


def _word(words: type[IntEnum], value: Any) -> str:
    try:
        return words(int(value)).name.lower()
    except ValueError:
        return str(value)


def _shown(number: int) -> str:
    return f"{number & _MASK:016x}"


def _record(kind: str, **facts: str) -> None:
    _core.log_metadata("CM", kind, json.dumps(facts, ensure_ascii=False))
