"""Users of the TCP sockets on this machine, as Linux lists them."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"
LISTENING = "0A"


def is_trusted(address: str, port: int, state: str) -> bool:
    """Return whether a socket belongs to this user or to root; True if this system does not list sockets.

    Arguments as for `user_of`.
    """
    return not Path(_TABLES[0]).exists() or user_of(address, port, state) in (0, os.getuid())


def user_of(address: str, port: int, state: str) -> int | None:
    """Return the id of the user whose process has the socket that is bound to this address and port.

    state: `ESTABLISHED` or `LISTENING`. None if there is none: a connection that its process has closed belongs to no
    user.
    """
    # A dual-stack client has an IPv6 socket, also for an IPv4 address.
    forms = (address, f"::ffff:{address}") if ":" not in address else (address,)
    wanted = [_in_table(form, port) for form in forms]
    for table in map(Path, _TABLES):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[1] in wanted and fields[3] == state:
                return int(fields[7])
    return None


def _in_table(address: str, port: int) -> str:
    """Return an address as the tables have it: hexadecimal, in words of the machine's byte order."""
    packed = ipaddress.ip_address(address).packed
    words = (int.from_bytes(packed[i : i + 4], sys.byteorder) for i in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
