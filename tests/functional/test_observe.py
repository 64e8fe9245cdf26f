"""A request for statistics, and what can be done with the answer."""

from __future__ import annotations

import torch

from drawn import EVERYTHING, make_call
from regard import Observation, Observe
from regard.functional import Top
from regard.functional.observe import request_of


def test_a_request_names_what_is_asked_for() -> None:
    everything = request_of(Observe(**EVERYTHING), 2)
    assert {*everything.names} == {*vars(Observation()), "keys"}
    assert everything.top == 2  # of two keys
    assert request_of(Observe(), 7).names == []
    weighed = request_of(Observe(received=torch.ones(3), rows=[], offsets=()), 7)
    assert weighed.names == ["rows", "received", "offsets"]
    assert weighed.received is not None


def test_map_reaches_every_tensor() -> None:
    _, statistics = make_call().run(observe=Observe(**EVERYTHING))
    mapped = statistics.map(lambda x: x[..., None])
    for name, value in vars(statistics).items():
        if isinstance(value, Top):
            assert [x.shape[:-1] for x in getattr(mapped, name)] == [x.shape for x in value]
        else:
            assert getattr(mapped, name).shape[:-1] == value.shape


def test_combine_takes_apart_what_cat_has_joined() -> None:
    _, statistics = make_call().run(observe=Observe(**EVERYTHING | {"received": False}))
    heads = [statistics.map(lambda x, k=k: x[:, k : k + 1]) for k in range(statistics.max.shape[1])]
    names = []

    def join(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
        names.append(name)
        return torch.cat(tensors, 1)

    joined = Observation.combine(heads, join)
    assert joined.received is None
    assert {*names} == {*vars(statistics), "keys"} - {"received"}
    assert torch.equal(joined.top.keys, statistics.top.keys)
    assert torch.equal(joined.weights, statistics.weights)
