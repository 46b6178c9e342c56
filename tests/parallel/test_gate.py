"""Actors of other machines: what is learned from their unrolls, and what happens when they fail."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError, UsageError
from rlcb.parallel import gate, messages, remote_seats, unroll_batches
from rlcb.parallel.messages import MessageStream, connect, versions, welcome
from rlcb.rl.rollout_buffer import RolloutBuffer
from tests import runs
from tests.impala_team import N_STEPS, Team, steps_by_environment
from tests.remote_team import HOST, HandActor, gate_of, joined

pytestmark = pytest.mark.timeout(120)
MARK = 12345.0  # an observation that no environment of these tests makes


@contextlib.contextmanager
def learning(team: Team, updates: int = 10_000, pause: float = 0.002) -> Iterator[threading.Event]:
    """Updates in a thread, as fast as the actors allow, until the block ends; gives what ends them."""
    enough = threading.Event()
    failures: list[BaseException] = []

    def learn() -> None:
        try:
            while not enough.is_set() and len(team.seen) < updates:
                team.learn(1, pause)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=learn, daemon=True)
    thread.start()
    try:
        yield enough
    finally:
        enough.set()
        thread.join(30)
    assert failures == []
    assert not thread.is_alive()


def wait_for_updates(team: Team, more: int, timeout: float = 30) -> None:
    """Wait until the learner has made `more` updates from now on."""
    due = len(team.seen) + more
    runs.wait_until(lambda: len(team.seen) >= due, timeout, f"{more} updates were not made")


def times_learned(team: Team, mark: float) -> int:
    """How many unrolls of a HandActor with this mark were learned from."""
    columns = sum(int((each.observations[0, :, 0] == mark).sum()) for each in team.seen)
    return columns // team.config.envs_per_process


@pytest.mark.parametrize(("actors", "lag", "batch"), [(1, 2, 2), (2, 1, 3), (1, 0, 3)])
def test_each_transition_of_local_and_remote_actors_is_learned_from_once_and_none_is_too_old(
    actors: int, lag: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll_batches, "LEAST_PATIENCE_SECONDS", 60.0)  # also on a busy machine
    team = Team(actors, lag, batch_size=batch, seats=2)
    with team.acting(), joined(team, 2) as remote:
        team.learn(1)
        runs.wait_until(lambda: len(remote) == 2)
        seen = team.learn(40, pause=0.003)
    steps = steps_by_environment(seen)
    assert len(steps) == 2 * (actors + 2)  # every environment has a seed of its own
    for numbers in steps.values():
        assert numbers == list(range(len(numbers)))  # none dropped, none repeated, in the order of time
    assert sum(map(len, steps.values())) == 41 * batch * 2 * N_STEPS
    for number, each in enumerate(seen):
        assert 0 <= (number - each.versions).min() <= (number - each.versions).max() <= lag
        assert (each.scaled_rewards[-1] == 1).all()
    record = gate_of(team).record()
    assert record["unrolls_late"] == 0
    assert sum(record["unrolls"].values()) == 41 * batch
    (own,) = [host for host in record["unrolls"] if not host.endswith("(joined)")]
    local = {(divmod_of_seed(actor, env)) for actor in team.actors for env in range(2)}
    ours = sum(len(numbers) for key, numbers in steps.items() if key in local)
    assert record["unrolls"][own] == ours // (2 * N_STEPS)


def divmod_of_seed(actor: Any, env: int) -> tuple[float, float]:
    """The first two numbers of the observations of an actor's environment."""
    observation = actor.writer.collector.observations[env]
    return float(observation[0]), float(observation[1])


@pytest.mark.parametrize(("env", "compressed"), [("step", False), ("step", True), ("procgen", True)])
def test_a_remote_unroll_is_bit_for_bit_that_of_a_local_actor(env: str, compressed: bool) -> None:
    """Seat 0 beside one actor has the environments of actor 1 of two: both write the same first unrolls."""
    with_seat, local = _twins(env, actors=1, seats=1), _twins(env, actors=2, seats=0)
    impala = with_seat.config.impala.model_copy(
        update={"compress_unrolls": "always" if compressed else "never"}
    )
    gate_of(with_seat).config = with_seat.config.model_copy(update={"impala": impala})
    with with_seat.acting(), joined(with_seat, 1), _held_at_version(with_seat):
        seat_unrolls = _unrolls_of(with_seat, 1)
        record = gate_of(with_seat).record()
    with local.acting(), _held_at_version(local):
        local_unrolls = _unrolls_of(local, 1)
    assert [*seat_unrolls] == [*local_unrolls] == [0, 1]
    for number, arrays in seat_unrolls.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, local_unrolls[number][name], err_msg=name)
            assert array.dtype == local_unrolls[number][name].dtype
    assert any(arrays["observations"].std() > 0 for arrays in seat_unrolls.values())
    assert record["unrolls_compressed"] >= 2 * compressed
    assert record["unroll_bytes"] % sum(array.nbytes for array in _sent(seat_unrolls[0])) == 0
    assert (record["received_bytes"] < record["unroll_bytes"]) == compressed


def _sent(arrays: dict[str, Any]) -> list[Any]:
    """The arrays of an unroll that travel."""
    return [array for name, array in arrays.items() if name != "episodes"]


def _twins(env: str, actors: int, seats: int) -> Team:
    team_class = ProcgenTeam if env == "procgen" else Team
    return team_class(actors, 3, batch_size=4, seats=seats)


class ProcgenTeam(Team):
    """Coinrun with a small network."""

    MEMORY = 2**25
    OVERRIDES: ClassVar = {
        "env": {"id": "coinrun", "group_size": 2, "kwargs": {}},
        "model": {"architecture": "nature", "hidden_size": 16},
    }


@contextlib.contextmanager
def _held_at_version(team: Team) -> Iterator[None]:
    """Hand out all slots with the first parameters, and make no update."""
    learner = team.learner
    learner.snapshot.publish(learner.learner.parameters, 0)
    learner.batches.give_out(range(team.store.size.slots))
    if learner.gate is not None:
        learner.gate.start()
    yield


def _unrolls_of(team: Team, actor: int) -> dict[int, dict[str, Any]]:
    """The first two unrolls of an actor, by number."""
    store, found = team.store, {}
    full: set[int] = set()

    def have_come() -> bool:
        for slot in team.queues[1].drain():
            if store.actor_of(slot) == actor:
                full.add(slot)
            else:  # the other actor must not take all slots
                team.learner.batches.give_out([slot])
        return len(full) >= 2

    runs.wait_until(have_come, 60)
    for slot in sorted(full, key=lambda slot: store.number[slot]):
        if store.number[slot] < 2:
            part = store.unroll(slot)
            found[int(store.number[slot])] = {
                **{name: getattr(part, name).copy() for name in messages.UNROLL_ARRAYS},
                "last_observations": store.last_observations[slot].copy(),
                "episodes": np.array(store.read_episodes(slot)),
            }
    return found


@pytest.mark.parametrize("moment", ["before it sends", "in the middle of sending"])
def test_the_slot_of_an_actor_that_dies_is_written_by_another_and_learned_from_once(moment: str) -> None:
    team = Team(1, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 3)
        actor = HandActor(team)
        actor.permit()
        if moment == "in the middle of sending":
            actor.fill(MARK)
            facts = {"phases": [0.0] * 5, "episodes": [], "compressed": 0}
            arrays = messages.unroll_arrays(actor.unroll, actor.last)
            whole = sum(array.nbytes for array in arrays)
            text = b'{"unroll": ' + repr(facts).replace("'", '"').encode() + b"}"
            actor.stream.socket.sendall(messages._HEAD.pack(messages.MAGIC, len(text), whole) + text)
            actor.stream.socket.sendall(arrays[0].tobytes()[:10])
        actor.close()
        wait_for_updates(team, 20)
    assert times_learned(team, MARK) == 0
    require_every_slot_once(team)


def require_every_slot_once(team: Team) -> None:
    """Every slot is free, complete or taken by a living actor, and no transition was learned from twice."""
    queued, full = team.queues[0].drain(), team.queues[1].drain()
    batches, store = team.learner.batches, team.store
    known = [*queued, *full, *batches.complete.intersection(batches.given)]
    assert len(known) == len({*known})
    for slot in {*batches.given} - {*known}:
        assert store.owner[slot], f"nobody has slot {slot}"
    assert sorted(batches.given) == list(range(store.size.slots))
    for numbers in steps_by_environment(team.seen).values():
        assert numbers[0] == MARK or len(numbers) == len({*numbers})


def test_an_actor_that_stands_still_loses_its_slot_and_its_late_unroll_is_thrown_away_and_counted() -> None:
    team = Team(2, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 5)
        actor = HandActor(team)
        actor.permit()
        begun = time.monotonic()
        wait_for_updates(team, 20)  # with 4 slots that is more than can be made without the one that it holds
        assert time.monotonic() - begun < 20
        assert gate_of(team).metrics() == {"impala/remote_actors": 1.0, "impala/unrolls_late": 0.0}
        actor.send(MARK)
        runs.wait_until(lambda: gate_of(team).metrics()["impala/unrolls_late"] == 1)
        wait_for_updates(team, 5)
        assert times_learned(team, MARK) == 0
        actor.permit()  # after a rest, it takes part again
        actor.send(MARK + 1, compressed=True)
        runs.wait_until(lambda: times_learned(team, MARK + 1) == 1)
        actor.close()
        wait_for_updates(team, 5)
    assert times_learned(team, MARK + 1) == 1
    for number, each in enumerate(team.seen):
        assert (number - each.versions).max() <= 1


def test_a_slow_actor_keeps_its_slot_while_others_have_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With free slots left nobody is held up, so nothing is taken back."""
    team = Team(1, 3, batch_size=1, seats=2)
    seats = gate_of(team).seats
    seat = seats.take("elsewhere")
    assert seat is not None
    team.learner.batches.give_out(range(3))
    slot = seats.claim(seat)
    assert slot == 0
    seat.since -= 100
    seats.take_back([0], 1.0)
    assert seats.held == {0: seat}
    team.queues[0].drain()
    seats.take_back([0], 1000.0)  # not patient enough to give it up
    assert seats.held == {0: seat}
    seats.take_back([0], 1.0)
    assert seats.held == {}
    assert team.queues[0].drain() == [0]


def test_a_slot_that_comes_back_is_handed_out_before_all_others() -> None:
    team = Team(1, 3, batch_size=1, seats=2)
    seats = gate_of(team).seats
    seat = seats.take("elsewhere")
    assert seat is not None
    team.learner.batches.give_out([2, 0, 3])
    assert seats.claim(seat) == 2
    seats.leave(seat)
    assert team.queues[0].drain() == [2, 0, 3]
    assert seats.num_free == 2


def test_a_silent_connection_is_closed_and_its_seat_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SILENCE_SECONDS", 0.5)
    team = Team(1, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 3)
        actor = HandActor(team)
        actor.permit()
        runs.wait_until(lambda: gate_of(team).seats.num_free == 1, 20)
        wait_for_updates(team, 10)
        actor.close()
    require_every_slot_once(team)


def test_an_actor_that_takes_a_used_seat_begins_new_episodes_that_no_other_had() -> None:
    team = Team(1, 2, batch_size=2, seats=1, length=100)
    with team.acting(), learning(team):
        wait_for_updates(team, 2)
        actor = HandActor(team)
        assert (actor.told["begun"], actor.told["first_env"]) == (0, 2)
        assert actor.permit() == 0
        actor.send(MARK)
        assert actor.permit() == 1
        actor.close()
        runs.wait_until(lambda: gate_of(team).seats.num_free == 1)
        actor = HandActor(team)
        assert actor.told["begun"] == 2
        assert actor.permit() == 2
        actor.send(MARK)
        actor.permit()
        runs.wait_until(lambda: times_learned(team, MARK) == 2)
        actor.close()
    seeds = set()
    for begun in (0, 2):
        other = Team(1, 2, batch_size=2, seats=1, length=100)
        other.store.begun[1] = begun
        with other.acting(), joined(other, 1) as remote:
            other.learn(1)
            runs.wait_until(lambda: len(remote) == 1)
            seen = other.learn(20, pause=0.01)
        local = {divmod_of_seed(other.actors[0], env) for env in range(2)}
        seeds |= steps_by_environment(seen).keys() - local
    assert len(seeds) == 4  # two environments, each with another seed than before


def test_the_environments_of_seats_share_no_group_with_others() -> None:
    team = Team(3, 2, envs_per_actor=2, seats=3)
    seats = gate_of(team).seats
    for group_size, expected in ((1, [6, 8, 10]), (2, [6, 8, 10]), (3, [6, 9, 12])):
        env = team.config.env.model_copy(update={"group_size": group_size})
        seats.config = team.config.model_copy(update={"env": env})
        seats._taken.clear()
        found = [seats.take("elsewhere") for _ in range(3)]
        assert [seats.first_env(seat) for seat in found if seat is not None] == expected


@pytest.mark.parametrize("shape", [((64, 64, 3), "uint8"), ((7,), "float32")])
def test_the_size_of_an_unroll_on_the_network_is_that_of_its_arrays(shape: tuple[Any, str]) -> None:
    spaces = Spaces(*shape, 15)
    unroll = RolloutBuffer(16, 8, spaces)
    arrays = messages.unroll_arrays(unroll, unroll.observations[0])
    assert messages.unroll_bytes(16, 8, spaces) == sum(array.nbytes for array in arrays)
    if shape[1] == "uint8":
        assert messages.unroll_bytes(16, 8, spaces) == 8 * (17 * 64 * 64 * 3 + 16 * (8 + 4 * 4 + 2))


def hello(team: Team, **changes: Any) -> MessageStream:
    stream = MessageStream(socket.create_connection((HOST, gate_of(team).port), 10))
    stream.send({"hello": {"host": "gpu2", "versions": versions(), "actors": None, **changes}})
    return stream


def test_another_version_other_spaces_and_a_full_house_are_refused_with_both_sides() -> None:
    team = Team(1, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 1)
        mine = gate_of(team).tally.own_host
        stream = hello(team, versions={**versions(), "torch": "1.0", "rlcb": None})
        ours = versions()
        with pytest.raises(UsageError) as refusal:
            welcome(stream)
        assert f"rlcb None on gpu2, {ours['rlcb']} on {mine}" in str(refusal.value)
        assert f"torch 1.0 on gpu2, {ours['torch']} on {mine}" in str(refusal.value)
        stream.close()
        stream = hello(team)
        welcome(stream)
        other = {**gate_of(team).spaces.to_dict(), "num_actions": 7}
        stream.send({"ready": {"spaces": other, "parameters": gate_of(team).num_parameters}})
        text = stream.receive()["refused"]
        assert "'num_actions': 7" in text
        assert "'num_actions': 2" in text
        assert text.startswith("the environment on gpu2 has ")
        stream.close()
        runs.wait_until(lambda: gate_of(team).seats.num_free == 1)
        actor = HandActor(team)
        with pytest.raises(messages.NoSeat):
            welcome(hello(team))
        with pytest.raises(UsageError, match=r"all 1 seats .* taken \(impala.max_remote_actors\)"):
            welcome(hello(team, actors=3))
        actor.close()
        runs.wait_until(lambda: gate_of(team).seats.num_free == 1)
        told = welcome(hello(team, actors=3))
        assert told["seats"] == 1
        assert told["config"] == team.config.model_dump(mode="json")


STRAYS = {
    "a browser": b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n",
    "nothing": b"",
    "a huge object": messages._HEAD.pack(messages.MAGIC, 2**32 - 1, 0),
    "huge arrays": messages._HEAD.pack(messages.MAGIC, 2, 2**60) + b"{}",
    "a list": messages._HEAD.pack(messages.MAGIC, 2, 0) + b"[]",
    "no json": messages._HEAD.pack(messages.MAGIC, 2, 0) + b"\xff\xfe",
    "a hello that is none": messages._HEAD.pack(messages.MAGIC, 11, 0) + b'{"hello":1}',
}


@pytest.mark.parametrize("sent", STRAYS.values(), ids=STRAYS)
def test_a_stray_connection_does_no_harm(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    team = Team(1, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 1)
        for _ in range(2):
            with socket.create_connection((HOST, gate_of(team).port), 10) as stray:
                stray.sendall(sent)
                with contextlib.suppress(OSError):  # the gate has closed it already
                    stray.shutdown(socket.SHUT_WR)
                    assert stray.recv(100) == b""
        wait_for_updates(team, 5)
        gate_of(team).check()
        assert gate_of(team).seats.num_free == 1
    lines = [record.getMessage() for record in caplog.records if "is no actor" in record.getMessage()]
    assert len(lines) == 1  # the second one from there is not told
    assert lines[0].startswith("closed a connection from 127.0.0.1 that is no actor: ")


@pytest.mark.parametrize(
    "unroll",
    [
        {"phases": [0.0] * 4, "episodes": [], "compressed": False},
        {"phases": [0.0] * 5, "episodes": [[1, 2]], "compressed": False},
        {"phases": [0.0] * 5, "episodes": []},
        {"phases": [0.0] * 5, "episodes": [], "compressed": True},
        [],
        {"phases": None},
    ],
)
def test_an_unroll_that_is_none_ends_its_connection_and_nothing_else(unroll: Any) -> None:
    team = Team(1, 1, batch_size=2, seats=1)
    with team.acting(), learning(team):
        wait_for_updates(team, 1)
        actor = HandActor(team)
        actor.permit()
        actor.stream.send({"unroll": unroll})
        runs.wait_until(lambda: gate_of(team).seats.num_free == 1)
        actor.close()
        wait_for_updates(team, 10)
    require_every_slot_once(team)


def test_an_error_of_the_gate_itself_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(1, 1, batch_size=2, seats=1)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(remote_seats.RemoteSeats, "begin", fail)
    with team.acting():
        team.learn(1)
        actor = HandActor(team)
        with pytest.raises(RunError, match="the gate for remote actors failed: ZeroDivisionError: by zero"):
            team.learn(5000, pause=0.002)
        actor.close()


def test_an_actor_is_told_that_the_run_has_ended_and_is_in_its_record() -> None:
    for status in ("completed", "stopped"):
        team = Team(1, 1, batch_size=2, seats=2)
        with team.acting():
            team.learn(1)
            waiting, node = HandActor(team), connect((HOST, gate_of(team).port), 3)
            welcome(node)
            runs.wait_until(lambda team=team: gate_of(team).metrics()["impala/remote_actors"] == 1)
            gate_of(team).close(status)
            for stream in (waiting.stream, node):
                message = stream.receive()
                while "end" not in message:
                    if "permit" in message:
                        stream.receive_arrays([waiting.parameters])
                    message = stream.receive()
                assert message == {"end": status}
            events = gate_of(team).record()["events"]
            assert [each["actors"] for each in events] == [1]  # it came, and the end of the run is no leaving


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"impala.actor_port = {port}: cannot listen there"):
            gate.listen(port)
