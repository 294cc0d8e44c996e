"""Attempts on the network, at listeners of the test's own on loopback alone. Runs inside; standard library only."""

from __future__ import annotations

import select
import socket

from inside import WAIT_S, Given, Prevented, attempt, first_of, token_in

GROUP = "network"


def _ask(family: int, address: tuple[str, int], given: Given) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(address)
        return token_in(sock.recv(200), given)


@attempt(GROUP)
def connect_to_loopback_of_the_host(given: Given) -> str:
    return _ask(socket.AF_INET, ("127.0.0.1", given["port"]), given)


@attempt(GROUP)
def connect_to_loopback_by_another_address(given: Given) -> str:
    return first_of(("127.0.0.2", "0.0.0.0"), lambda host: _ask(socket.AF_INET, (host, given["port"]), given))


@attempt(GROUP)
def connect_to_loopback_by_its_sixth_version(given: Given) -> str:
    return _ask(socket.AF_INET6, ("::1", given["port6"]), given)


@attempt(GROUP)
def send_a_datagram(given: Given) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", given["udp_port"]))  # so that it is told where nobody is there
        sock.send(b"hello")
        return token_in(sock.recv(200), given)


@attempt(GROUP)
def take_a_port_that_the_host_sees(given: Given) -> str:
    """Listens, and has the harness's own listener told to call back: it knows whether anybody can be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", given["udp_port"]))
        sock.send(b"call me at %d" % server.getsockname()[1])
        if server not in select.select([server, sock], [], [], WAIT_S)[0]:
            raise Prevented("nobody calls back")
        peer, _ = server.accept()
        with peer:
            peer.settimeout(WAIT_S)
            return token_in(peer.recv(200), given)


@attempt(GROUP, control="root")
def listen_to_packets(given: Given) -> str:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        return "opened a packet socket"


@attempt(GROUP, control="root")
def send_raw_packets(given: Given) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return "opened a raw socket"


@attempt(GROUP)
def talk_to_the_docker_engine(given: Given) -> str:
    """If no engine runs, a listener of the harness stands in for it, so that the attempt has a control."""

    def ask(path: str) -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(WAIT_S)
            sock.connect(path)
            sock.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            if b"200 OK" not in sock.recv(1000):
                raise Prevented("no engine")
            return f"spoke with {path}"

    paths = [given["engine"], "/var/run/docker.sock", "/run/docker.sock", given["stand_in"]]
    return first_of(paths, ask)
