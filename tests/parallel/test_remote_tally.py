"""What a run tells of actors on other machines."""

from __future__ import annotations

import pytest

from rlcb.parallel import remote_tally
from rlcb.parallel.remote_tally import RemoteTally


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> RemoteTally:
    monkeypatch.setattr(remote_tally, "SETTLE_SECONDS", 0.0)
    return RemoteTally(local_actors=4)


def test_a_machine_that_comes_changes_and_leaves_is_a_line_each(tally: RemoteTally) -> None:
    for _ in range(8):
        tally.add("gpu2", 1)
    assert tally.news() == ["actor node gpu2 joined: 8 actors, 12 in all"]
    assert tally.news() == []
    tally.add("gpu2", -1)
    tally.add("gpu3", 1)
    assert tally.news() == [
        "actor node gpu2: 7 actors instead of 8, 12 in all",
        "actor node gpu3 joined: 1 actor, 12 in all",
    ]
    tally.add("gpu2", -7)
    assert tally.news() == ["actor node gpu2 left: 5 actors in all"]
    assert [(each["host"], each["actors"]) for each in tally.record()["events"]] == [
        *(("gpu2", 8), ("gpu2", 7), ("gpu3", 1), ("gpu2", 0)),
    ]


def test_actors_that_come_one_after_another_are_told_once_they_are_all_there() -> None:
    tally = RemoteTally(1)
    tally.add("gpu2", 1)
    assert tally.news() == []
    tally.add("gpu2", -1)
    tally._changed_at["gpu2"] -= 10
    assert tally.news() == []  # it left again before anybody was told


def test_a_change_shortly_before_the_end_is_in_the_record_once() -> None:
    tally = RemoteTally(1)
    tally.add("gpu2", 1)
    tally.add("gpu2", 1)
    tally.add("gpu3", 1)
    tally.add("gpu3", -1)
    for _ in range(2):
        assert [(each["host"], each["actors"]) for each in tally.record()["events"]] == [("gpu2", 2)]
    tally._changed_at["gpu2"] -= 10
    tally.news()
    assert [(each["host"], each["actors"]) for each in tally.record()["events"]] == [("gpu2", 2)]
    tally.add("gpu2", -2)
    events = tally.record()["events"]
    assert [(each["host"], each["actors"]) for each in events] == [("gpu2", 2), ("gpu2", 0)]


def test_a_resumed_run_continues_the_counts(tally: RemoteTally) -> None:
    tally.count_learned([None, "gpu2", "gpu2"])
    tally.late = 3
    tally.count_arrival(10, 50, compressed=True)
    tally.count_arrival(50, 50, compressed=False)
    tally.add("gpu2", 2)
    tally.news()
    other = RemoteTally(4)
    other.load(tally.record())
    other.count_learned(["gpu2"])
    assert other.record()["unrolls"] == {other.own_host: 1, "gpu2": 3}
    assert other.record()["unrolls_late"] == 3
    assert other.record()["unrolls_compressed"] == 1
    assert (other.record()["received_bytes"], other.record()["unroll_bytes"]) == (60, 100)
    assert [each["actors"] for each in other.record()["events"]] == [2]


def test_the_record_of_a_version_that_did_not_compress_can_be_continued(tally: RemoteTally) -> None:
    tally.load({"other_hosts": 1, "unrolls": {"gpu2": 3}, "unrolls_late": 1, "events": []})
    tally.count_arrival(10, 50, compressed=True)
    record = tally.record()
    assert (record["unrolls_compressed"], record["received_bytes"], record["unroll_bytes"]) == (1, 10, 50)
