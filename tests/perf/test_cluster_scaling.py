"""The model of scaling over nodes against calculations by hand."""

from __future__ import annotations

import math
import random
import statistics
import struct
from dataclasses import replace
from typing import Literal

import pytest

from perf.cluster_scaling.cable import VNET_HEADER, target_of, wire_bytes
from perf.cluster_scaling.data import slope
from perf.cluster_scaling.model import (
    Computing,
    LowRank,
    Machine,
    Options,
    Workload,
    expected_maximum,
    ideal_fps,
    interpolate,
    largest_share,
    minibatches,
    predict,
    small_parts,
    small_sums,
    sum_parts,
)
from perf.cluster_scaling.ring import (
    Hop,
    Sharing,
    compressed_parts,
    direct_parts,
    fit_hop,
    hierarchical_parts,
    link_hop,
    ring_parts,
)

NET, LOCAL = Hop(1e-3, 1e8), Hop(1e-4, 1e9)
DIRECT = Hop(1e-3, 1e8, direct=6e-4, delay=4e-4)
NO_COST = Hop(0.0, math.inf)
MACHINE = Machine(
    local=LOCAL,
    wire=Hop(5e-5, 1e9),
    sharing=Sharing(meeting=2e-5, bandwidth=4e9),
    gather_seconds=0.0,
    index_seconds={1000: 0.0, 2000: 0.0},
    hidden_share=1.0,
    measured_cores=1,
)
STEP = {0: 0.01, 100: 0.11}  # an optimiser step: 10 ms, and 1 ms a sample
COMPUTING = Computing(
    parameters=250_000,  # a gradient of 1 MB
    act={1: 0.001, 11: 0.006},  # a step of n environments: 0.5 ms, and 0.5 ms an environment
    learn={"ppo": STEP, "a2c": STEP, "impala": STEP},
    rest={"ppo": 1e-4, "a2c": 1e-4, "impala": 1e-4},
    beta=0.0,
    late_bytes=200_000,
    noise=0.0,
    microbatch=50,
    low_rank=LowRank(first_bytes=20_000, second_bytes=30_000, seconds=0.004),
)
A2C = Workload("a2c", envs=8, n_steps=10, batch_size=None)
ACT, LEARN, REST = 10 * 4.5e-3, 0.01 + 80 * 1e-3, 10 * 1e-4  # of A2C's 80 timesteps


def test_points_are_joined_by_straight_lines_that_go_on_beyond_the_last() -> None:
    points = {1: 2.0, 3: 6.0, 7: 8.0}
    assert interpolate(points, 2) == pytest.approx(4.0)
    assert interpolate(points, 5) == pytest.approx(7.0)
    assert interpolate(points, 11) == pytest.approx(10.0)
    assert interpolate({4: 2.0}, 6) == pytest.approx(3.0)  # one size: in proportion


def test_two_ranks_exchange_halves_twice() -> None:
    # Each pass: two segments of 250 kB follow each other, and the last one is there a latency later.
    one_pass = 2 * 250_000 / 1e8 + 1e-3
    assert sum(ring_parts(1_000_000, 2, 1, NET, LOCAL).values()) == pytest.approx(2 * one_pass)


def test_a_short_message_passes_every_hop_twice_but_one() -> None:
    # 3 nodes of 4 ranks: 12 hops, 3 of them between nodes; a segment takes 11 of 12.
    parts = ring_parts(0, 3, 4, NET, LOCAL)
    assert parts["latency, network"] == pytest.approx(2 * 11 / 12 * 3 * 1e-3)
    assert parts["latency, node"] == pytest.approx(2 * 11 / 12 * 9 * 1e-4)
    assert parts["bytes"] == pytest.approx(0.0)


def test_of_a_long_message_each_link_carries_all_but_one_share_twice() -> None:
    size, ranks = 1e9, 8
    seconds = sum(ring_parts(size, 4, 2, NET, LOCAL).values())
    assert seconds == pytest.approx(2 * (ranks - 1) / ranks * size / 1e8, rel=0.01)


def test_one_node_has_no_network_and_one_rank_no_sum() -> None:
    parts = ring_parts(1_000_000, 1, 4, NET, LOCAL)
    assert parts["latency, network"] == 0.0
    assert sum(parts.values()) == pytest.approx(sum(ring_parts(1_000_000, 4, 1, LOCAL, NET).values()))
    assert sum(ring_parts(1_000_000, 1, 1, NET, LOCAL).values()) == 0.0


def test_ring_agrees_with_a_simulation_of_its_segments() -> None:
    for size in (4_000, 400_000, 40_000_000):
        for ranks in (2, 3, 8, 16):
            closed = sum(ring_parts(size, ranks, 1, NET, LOCAL).values())
            assert closed == pytest.approx(2 * simulated_pass(size, ranks, NET), rel=0.05)


def simulated_pass(size: float, ranks: int, hop: Hop) -> float:
    """One pass of the ring, event by event: a rank sends its two segments, then each that it received."""
    transfer = size / (2 * ranks) / hop.bandwidth
    sent_until = [0.0] * ranks
    ready = [[0.0, 0.0] for _ in range(ranks)]  # when a rank may send its next two segments
    for _ in range(ranks - 1):
        arrived = [[0.0, 0.0] for _ in range(ranks)]
        for rank in range(ranks):
            for segment in range(2):
                sent_until[rank] = max(sent_until[rank], ready[rank][segment]) + transfer
                arrived[(rank + 1) % ranks][segment] = sent_until[rank] + hop.latency
        ready = arrived
    return max(max(each) for each in ready)


def test_in_a_hierarchy_only_nodes_are_in_the_ring() -> None:
    parts = hierarchical_parts(1_000_000, 4, 8, NET, LOCAL, Sharing(2e-5, 4e9))
    ring = ring_parts(1_000_000, 4, 1, NET, LOCAL)
    assert parts["latency, network"] == ring["latency, network"]
    assert parts["latency, node"] == pytest.approx(3 * 3 * 2e-5)  # three meetings of 8 ranks, 3 rounds each
    assert parts["bytes"] == pytest.approx(ring["bytes"] + 2 * 1_000_000 / 4e9)


def test_short_direct_sums_take_the_logarithm_of_the_nodes_in_hops() -> None:
    for nodes, hops in ((2, 1), (3, 2), (8, 3), (9, 4)):
        parts = direct_parts(100, nodes, 1, DIRECT, MACHINE.sharing)
        assert parts["latency, network"] == pytest.approx(hops * 6e-4 + 4e-4)
        assert parts["bytes"] == pytest.approx((nodes - 1) * 100 / 1e8)


def test_long_direct_sums_take_twice_as_many_hops_and_send_what_a_ring_sends() -> None:
    for nodes, hops, vectors in ((2, 2, 1.0), (8, 6, 2 * 7 / 8), (12, 6 + 2, 2 * 7 / 8 + 2)):
        parts = direct_parts(1_000_000, nodes, 1, DIRECT, MACHINE.sharing)
        assert parts["latency, network"] == pytest.approx(hops * 6e-4 + 4e-4)
        assert parts["bytes"] == pytest.approx(vectors * 1_000_000 / 1e8)
    within = hierarchical_parts(1_000_000, 1, 8, NET, LOCAL, MACHINE.sharing)
    assert direct_parts(1_000_000, 1, 8, DIRECT, MACHINE.sharing) == within


def test_compressed_sums_send_half_the_bytes_to_every_other_node_twice() -> None:
    parts = compressed_parts(1_000_000, 4, 1, DIRECT, MACHINE.sharing)
    assert parts["bytes"] == pytest.approx(2 * 3 / 4 * 500_000 / 1e8)
    assert parts["latency, network"] == pytest.approx(2 * 3 * 2e-4 + 3 * 4e-4)


@pytest.mark.parametrize(("share", "way"), [(1.5, "ring"), (0.91, "ring"), (0.89, "direct")])
def test_auto_takes_a_ring_unless_another_way_is_clearly_faster(
    share: float, way: Literal["ring", "direct"]
) -> None:
    network = Hop(1e-3, math.inf, direct=share * 2e-3)  # a ring of two takes two hops
    found = sum_parts(32, 2, 1, network, MACHINE, Options(reduction="auto"))
    assert found == sum_parts(32, 2, 1, network, MACHINE, Options(reduction=way))
    assert found["latency, network"] == pytest.approx((1.0 if way == "ring" else share) * 2e-3)


def test_a_hop_is_found_again_from_the_all_reduces_of_two_ranks() -> None:
    times = {size: sum(ring_parts(size, 2, 1, NET, LOCAL).values()) for size in (32, 100_000, 2_000_000)}
    found = fit_hop(times)
    assert found.latency == pytest.approx(NET.latency, rel=1e-3)
    assert found.bandwidth == pytest.approx(NET.bandwidth, rel=1e-3)
    direct = {size: sum(direct_parts(size, 2, 1, DIRECT, MACHINE.sharing).values()) for size in times}
    assert fit_hop(times, direct, 4e-4).direct == pytest.approx(DIRECT.direct, rel=1e-3)


def test_a_link_adds_a_round_trip_and_the_time_of_its_bytes() -> None:
    found = link_hop(Hop(5e-5, 1e9, direct=7e-5), 1e9, 2e-4)
    assert (found.direct, found.delay) == (pytest.approx(2.7e-4), 2e-4)
    assert found.latency == pytest.approx(4.5e-4)
    assert 1e6 / found.bandwidth == pytest.approx(1e6 / 1e9 + 8e6 / 1e9 * 1538 / 1448)


def test_the_expected_maximum_is_that_of_normal_numbers() -> None:
    generator = random.Random(1)
    for count in (2, 16, 128):
        largest = [max(generator.gauss(0, 1) for _ in range(count)) for _ in range(4000)]
        assert expected_maximum(count) == pytest.approx(statistics.mean(largest), rel=0.06)
    assert expected_maximum(1) == 0.0


def test_the_largest_share_is_that_of_drawn_minibatches() -> None:
    workload, nodes, per_node = Workload("ppo", 8, 16, 64, 1), 4, 4
    total = workload.samples * nodes * per_node  # 2,048 samples, 512 on each node
    generator, largest = random.Random(1), []
    for _ in range(2000):
        owners = [sample // (total // nodes) for sample in generator.sample(range(total), 64)]
        largest.append(max(math.ceil(owners.count(node) / per_node) for node in range(nodes)))
    assert largest_share(workload, nodes, per_node) == pytest.approx(statistics.mean(largest), rel=0.03)


def test_who_learns_from_everything_has_equal_shares() -> None:
    assert largest_share(A2C, 4, 2) == A2C.samples


def test_sums_are_counted_as_the_programs_make_them() -> None:
    ppo = Workload("ppo", envs=8, n_steps=10, batch_size=100, epochs=3)
    assert minibatches(ppo, ranks=4) == 3 * 4  # 320 samples in minibatches of 100: 4 an epoch
    for algorithm in (ppo, A2C):
        assert small_sums(algorithm, nodes=2) == 6
        assert small_sums(algorithm, nodes=1) == 5
    assert small_sums(replace(A2C, algorithm="impala"), nodes=2) == 4


def test_nodes_tell_the_moments_of_advantages_once_an_epoch() -> None:
    ppo = Workload("ppo", envs=8, n_steps=10, batch_size=100, epochs=3)
    few = 6 * (32 / 1e8 + 2 * 1e-3)
    moments = 3 * (2 * 4 * 24 / 1e8 + 2 * 1e-3)  # of 4 minibatches of each of 2 nodes, 24 bytes
    found = small_parts(replace(ppo, envs=16), 2, 1, NET, MACHINE, Options())
    assert sum(found.values()) == pytest.approx(few + moments)
    found = small_parts(A2C, 2, 1, NET, MACHINE, Options())
    assert sum(found.values()) == pytest.approx(few)
    found = small_parts(ppo, 1, 2, NET, MACHINE, Options())  # who see the same rollout need not tell them
    assert sum(found.values()) == pytest.approx(5 * (32 / 1e9 + 2 * 1e-4))


def test_an_update_of_one_core_is_its_pieces() -> None:
    prediction = predict(A2C, 1, 1, NET, COMPUTING, MACHINE)
    assert prediction.timesteps == 80
    assert prediction.seconds == pytest.approx(ACT + LEARN + REST)
    assert prediction.fps == pytest.approx(80 / (ACT + LEARN + REST))
    assert ideal_fps(A2C, COMPUTING, MACHINE) == pytest.approx(prediction.fps)


def test_an_update_of_two_nodes_adds_their_sums() -> None:
    prediction = predict(A2C, 2, 1, NET, COMPUTING, MACHINE)
    gradient = 1_000_000 / 1e8 + 2 * 1e-3
    small = 32 / 1e8 + 2 * 1e-3
    assert prediction.seconds == pytest.approx(ACT + LEARN + REST + gradient + 6 * small)


def test_ppo_steps_on_its_share_of_every_minibatch_and_waits_for_the_largest() -> None:
    ppo = Workload("ppo", envs=8, n_steps=10, batch_size=80, epochs=2)
    prediction = predict(ppo, 2, 1, NO_COST, COMPUTING, replace(MACHINE, local=NO_COST))
    # 4 minibatches, of which a rank has 40 samples each: 10 ms and 40 ms.
    assert prediction.parts["learn"] == pytest.approx(4 * 0.050)
    spread = math.sqrt(80 * 0.25 * (160 - 80) / 159)
    assert prediction.parts["uneven"] == pytest.approx(4 * 1e-3 * spread * expected_maximum(2))


def test_noise_makes_all_wait_for_the_slowest() -> None:
    noisy = replace(COMPUTING, noise=0.1)
    prediction = predict(A2C, 2, 1, NO_COST, noisy, replace(MACHINE, local=NO_COST))
    assert prediction.parts["uneven"] == pytest.approx(0.1 * expected_maximum(2) * (ACT + LEARN))


def test_busy_cores_slow_each_other() -> None:
    crowded = replace(COMPUTING, beta=0.02)
    measured = replace(MACHINE, measured_cores=2)  # what was measured is slower by 2 % already
    prediction = predict(A2C, 1, 4, NET, crowded, measured)
    assert prediction.parts["act"] == pytest.approx(ACT / 1.02)
    assert prediction.parts["learn"] == pytest.approx(LEARN / 1.02)
    assert prediction.parts["crowd"] == pytest.approx(0.06 * (ACT + LEARN + REST) / 1.02)


def test_actors_of_impala_act_while_learners_wait() -> None:
    impala = replace(A2C, algorithm="impala")
    prediction = predict(impala, 2, 1, NET, COMPUTING, MACHINE)
    waiting = 1_000_000 / 1e8 + 2e-3 + 4 * (32 / 1e8 + 2e-3)
    assert waiting < ACT
    assert prediction.seconds == pytest.approx(LEARN + REST + ACT)
    slow = Hop(1e-3, 1e7)
    waiting = 1_000_000 / 1e7 + 2e-3 + 4 * (32 / 1e7 + 2e-3)
    assert waiting > ACT
    assert predict(impala, 2, 1, slow, COMPUTING, MACHINE).seconds == pytest.approx(LEARN + REST + waiting)
    busy = replace(MACHINE, hidden_share=0.25)  # gloo's threads and actors share the cores
    expected = LEARN + REST + waiting + 0.75 * ACT
    assert predict(impala, 2, 1, slow, COMPUTING, busy).seconds == pytest.approx(expected)


def test_bf16_halves_the_bytes_and_sums_the_statistics_apart() -> None:
    plain = predict(A2C, 2, 1, DIRECT, COMPUTING, MACHINE)
    half = predict(A2C, 2, 1, DIRECT, COMPUTING, MACHINE, Options(compression="bf16"))
    statistics_alone = 32 / 1e8 + 2e-3
    hops = 2e-3 - (2 * 2e-4 + 3 * 4e-4)  # of a ring, and of compressed sums
    assert plain.seconds - half.seconds == pytest.approx(500_000 / 1e8 + hops - statistics_alone)


def test_powersgd_makes_two_small_sums_and_computes_for_them() -> None:
    plain = predict(A2C, 2, 1, NET, COMPUTING, MACHINE)
    low_rank = predict(A2C, 2, 1, NET, COMPUTING, MACHINE, Options(compression="powersgd"))
    sums = 50_000 / 1e8 + 2 * 2e-3
    assert plain.seconds - low_rank.seconds == pytest.approx(1_000_000 / 1e8 + 2e-3 - sums - 0.004)
    assert low_rank.parts["low rank"] == pytest.approx(0.004)


def test_powersgd_sums_whole_gradients_within_nodes_first() -> None:
    nested = Options(compression="powersgd", reduction="hierarchical")
    prediction = predict(A2C, 4, 8, NET, COMPUTING, MACHINE, nested)
    small = sum(hierarchical_parts(32, 4, 8, NET, LOCAL, MACHINE.sharing).values())
    within = 3 * 3 * 2e-5 + 2 * 1_000_000 / 4e9
    between = sum(sum(ring_parts(size, 4, 1, NET, LOCAL).values()) for size in (20_000, 30_000))
    summing = sum(prediction.parts[name] for name in ("latency, network", "latency, node", "bytes"))
    assert summing == pytest.approx(6 * small + within + between)
    alone = predict(
        A2C, 1, 8, NET, COMPUTING, MACHINE, nested
    )  # nothing to send: exact sums in shared memory
    assert alone.parts["low rank"] == 0.0
    assert (
        alone.seconds
        == predict(A2C, 1, 8, NET, COMPUTING, MACHINE, Options(reduction="hierarchical")).seconds
    )


def test_overlap_hides_what_is_sent_during_the_last_backward_pass() -> None:
    # The last microbatch of 50 samples takes 50 ms, its backward pass two thirds: longer than 800 kB take.
    hidden = predict(A2C, 2, 1, NET, COMPUTING, MACHINE, Options(overlap=True))
    plain = predict(A2C, 2, 1, NET, COMPUTING, MACHINE)
    late, small = 200_000 / 1e8 + 2e-3, 32 / 1e8 + 2e-3
    assert plain.seconds - hidden.seconds == pytest.approx(1_000_000 / 1e8 + 2e-3 - late - small)
    busy = replace(MACHINE, hidden_share=0.25)  # gloo's threads and the backward pass share the core
    less = predict(A2C, 2, 1, NET, COMPUTING, busy, Options(overlap=True))
    assert less.seconds - hidden.seconds == pytest.approx(0.75 * (800_000 / 1e8 + 2e-3))


def test_rank_0_takes_in_figures_shuffles_everything_and_takes_snapshots() -> None:
    machine = replace(MACHINE, gather_seconds=1e-3, index_seconds={1000: 0.1, 2000: 0.2})
    ppo = Workload("ppo", envs=10, n_steps=100, batch_size=None, epochs=2)
    prediction = predict(ppo, 2, 1, NET, COMPUTING, machine, Options(state_bytes=1e6))
    assert prediction.parts["gathering"] == pytest.approx(1e-3)
    assert prediction.parts["shuffling"] == pytest.approx(2 * 0.2)
    seconds = 20 * 1e6 / 1e8  # of a snapshot, one in 30 s
    assert prediction.parts["snapshots"] == pytest.approx(
        seconds * (prediction.seconds - prediction.parts["snapshots"]) / 30
    )


def test_shares_of_an_update_are_of_its_whole_time() -> None:
    prediction = predict(A2C, 2, 1, NET, COMPUTING, MACHINE)
    assert prediction.share(*prediction.parts) == pytest.approx(1.0)
    assert prediction.share("learn") == pytest.approx(LEARN / prediction.seconds)


def test_a_packet_that_stands_for_many_frames_takes_all_their_headers() -> None:
    header = struct.pack("=BBHHHH", 1, 1, 52, 1448, 20, 16)
    assert len(header) == VNET_HEADER
    payload = 10 * 1448
    assert wire_bytes(header + bytes(52 + payload)) == payload + 10 * (52 + 38)
    short = struct.pack("=BBHHHH", 0, 0, 0, 0, 0, 0) + bytes(60)
    assert wire_bytes(short) == 60 + 38


def test_a_packet_goes_to_the_host_whose_address_it_has() -> None:
    header = bytes(VNET_HEADER)
    ipv4 = bytes([0x45, *bytes(11), 10, 98, 9, 1, 10, 98, 9, 3])  # from the first host to the third
    assert target_of(header + ipv4) == 2
    assert target_of(header + bytes([0x60, *bytes(39)])) < 0  # IPv6 is for none


def test_a_slope_is_never_negative() -> None:
    assert slope({2: 1.0, 4: 5.0, 8: 4.0}) == pytest.approx(0.5)
    assert slope({2: 1.0, 8: 0.5}) == 0.0
