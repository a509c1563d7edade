"""From the node that made a tensor to the nodes that read it.

Torch reuses the ids of tensors and storages, so a tensor is identified by its ids, its length and its
item size together, and lives from the last node that returned it. If nested nodes return the same
tensor, the innermost one made it. In-place changes through a view are found through the
storage.
"""

from __future__ import annotations

import numpy as np

from dftracer.link._columns import Ints, contains
from dftracer.link.execution_trace import ExecutionTrace, Tensors
from dftracer.link.graph import Graph
from dftracer.link.last_before import last_before

__all__ = ["data_edges"]


def _identities(*tables: Tensors) -> list[Ints]:
    """One number for each distinct tensor, over all tables."""
    joined = [
        np.concatenate(c)
        for c in zip(*((t.tensor, t.storage, t.elements, t.item) for t in tables), strict=True)
    ]
    total = joined[0].size
    order = np.lexsort(joined)
    fresh = np.zeros(total, dtype=bool)
    for column in joined:
        sorted_column = column[order]
        fresh[1:] |= sorted_column[1:] != sorted_column[:-1]
    number = np.empty(total, dtype=np.int64)
    number[order] = np.cumsum(fresh)
    ends = np.cumsum([t.node.size for t in tables])
    return np.split(number, ends[:-1])


def _ends(graph: Graph, et: ExecutionTrace) -> Ints:
    """When nodes ended; without a clock, after the last node below them began."""
    end = graph.end[: len(et)].copy()
    if not graph.timed.any() and len(et):
        last = np.arange(len(et), dtype=np.int64)
        for row in range(len(et) - 1, -1, -1):
            up = int(graph.parent[row])
            if up >= 0 and last[up] < last[row]:
                last[up] = last[row]
        end = 2 * last + 1
    return end


def data_edges(graph: Graph, et: ExecutionTrace) -> tuple[Ints, Ints]:
    """Pairs of rows, maker and reader."""
    none = np.zeros(0, dtype=np.int64)
    if not et.outputs.node.size or not et.inputs.node.size:
        return none, none
    read, given = _identities(et.inputs, et.outputs)
    start, end, place = graph.start, _ends(graph, et), graph.place
    read_node, read_key, read_storage = _once(et.inputs.node, read, et.inputs.storage)
    node, key, storage = _once(et.outputs.node, given, et.outputs.storage)
    # Innermost: the next node that returns the same tensor is not inside it.
    order = np.lexsort((place[node], key))
    node, key, storage = node[order], key[order], storage[order]
    inside = (
        (key[1:] == key[:-1]) & (start[node[1:]] < end[node[:-1]]) & (et.tid[node[1:]] == et.tid[node[:-1]])
    )
    makes = np.append(~inside, True)
    node, key, storage = node[makes], key[makes], storage[makes]
    at = last_before(key, end[node], read_key, start[read_node], place[node], place[read_node])
    source = [node[at[at >= 0]]]
    target = [read_node[at >= 0]]
    # In place: a node that returns its input has changed the storage, for all views of it.
    width = int(max(read_key.max(), key.max())) + 1
    changes = contains(read_node * width + read_key, node * width + key)
    changer, changed = node[changes], storage[changes]
    via = last_before(changed, end[changer], read_storage, start[read_node], place[changer], place[read_node])
    made = np.where(at >= 0, place[node[np.maximum(at, 0)]], -1)
    later = (via >= 0) & (place[changer[np.maximum(via, 0)]] > made) if changer.size else via >= 0
    source.append(changer[via[later]] if changer.size else none)
    target.append(read_node[later] if changer.size else none)
    a, b = np.concatenate(source), np.concatenate(target)
    return a[a != b], b[a != b]


def _once(node: Ints, key: Ints, storage: Ints) -> tuple[Ints, Ints, Ints]:
    """Each tensor of a node once."""
    order = np.lexsort((key, node))
    node, key, storage = node[order], key[order], storage[order]
    first = np.append(True, (node[1:] != node[:-1]) | (key[1:] != key[:-1]))
    return node[first], key[first], storage[first]
