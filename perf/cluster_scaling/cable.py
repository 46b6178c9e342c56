"""Cables from hosts to a switch, which delay: what leaves one TUN device is handed to another one later.

    python -m perf.cluster_scaling.cable DEVICE DEVICE [DEVICE ...] --rate BITS --delay SECONDS

Device i belongs to the host whose address ends with i + 1. Each packet is held back for as long as cables of
that rate and delay would take. Packets stay as large as the sender's kernel makes them, up to 64 KB, as they
do on their way to a network card that cuts them up; so this can keep up with a gigabit per second, though not
for nothing: it takes processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import time
from collections import deque
from collections.abc import Sequence

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
VNET_HEADER = 10  # bytes before a packet; a packet may stand for many frames, whose payload is its field 4
LARGEST = VNET_HEADER + 65_536
HEADERS = 52  # of IP and TCP in each frame
ETHERNET = 38  # around each frame, the gap between two included
PR_SET_TIMERSLACK = 29


def open_tun(device: str) -> int:
    """The descriptor of a new TUN device, not blocking, that takes and gives large packets uncut."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor


def wire_bytes(packet: bytes) -> int:
    """Bytes that a packet from a TUN device takes on an Ethernet, as as many frames as it stands for."""
    size = len(packet) - VNET_HEADER
    _, _, _, payload, _, _ = struct.unpack_from("=BBHHHH", packet)
    frames = max(1, -(-(size - HEADERS) // payload)) if payload else 1
    return size + (frames - 1) * HEADERS + frames * ETHERNET


def forward(devices: Sequence[int], rate: float, delay: float) -> None:
    """Carry packets between TUN devices for ever.

    A packet begins to travel when the one before it has been sent whole by its host, at `rate` bits per
    second. The switch passes it on as it comes, behind others for the same host, where it is `delay` later.
    None is lost: what does not fit on a cable yet waits.
    """
    numbers = {device: number for number, device in enumerate(devices)}
    sent, received = [0.0] * len(devices), [0.0] * len(devices)  # until when cables are busy
    travelling: list[deque[tuple[float, bytes]]] = [deque() for _ in devices]
    while True:
        now = time.monotonic()
        due = min((queue[0][0] for queue in travelling if queue), default=now + 1.0)
        readable, _, _ = select.select(devices, (), (), max(0.0, due - now))
        for device in readable:
            source = numbers[device]
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(device, LARGEST)
                    target = target_of(packet)
                    if not (0 <= target < len(devices) and target != source):  # to a group of hosts
                        continue
                    seconds = 8 * wire_bytes(packet) / rate
                    sent[source] = max(sent[source], time.monotonic()) + seconds
                    received[target] = max(sent[source], received[target] + seconds)
                    travelling[target].append((received[target] + delay, packet))
                    if sent[source] > due:
                        break
        now = time.monotonic()
        for target, queue in enumerate(travelling):
            while queue and queue[0][0] <= now:
                with contextlib.suppress(OSError):  # the device is not up yet
                    os.write(devices[target], queue[0][1])
                queue.popleft()


def target_of(packet: bytes) -> int:
    """Return the number of the device that an IPv4 packet is for; another number if it is for none."""
    return packet[VNET_HEADER + 19] - 1 if packet[VNET_HEADER] >> 4 == 4 else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("devices", nargs="+", metavar="DEVICE")
    parser.add_argument("--rate", type=float, required=True, help="bits per second")
    parser.add_argument("--delay", type=float, required=True, help="seconds in each direction")
    arguments = parser.parse_args()
    devices = [open_tun(device) for device in arguments.devices]
    # Timers to the microsecond, and before anything else that wants the processor.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    forward(devices, arguments.rate, arguments.delay)


if __name__ == "__main__":
    main()
