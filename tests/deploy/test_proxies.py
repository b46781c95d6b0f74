"""Node sessions pass through real proxies, nginx and HAProxy, as they pass through the Ingress of a cluster."""

import shutil
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, Cluster, Coordinator, Node, Round
from tests.support.programs import Program, wait_until

NGINX = Template("""
daemon off; master_process off; pid $folder/nginx.pid; error_log stderr;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path $folder/body; proxy_temp_path $folder/proxy; fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi; scgi_temp_path $folder/scgi;
  map $$http_upgrade $$upgrade { default upgrade; '' ''; }
  upstream coordinatord { server 127.0.0.1:$behind; keepalive 8; }
  server {
    listen 127.0.0.1:$before;
    location / {
      proxy_pass http://coordinatord; proxy_http_version 1.1; proxy_set_header Host $$host;
      proxy_set_header Upgrade $$http_upgrade; proxy_set_header Connection $$upgrade;
    }
  }
}
""")
"""A reverse proxy that keeps connections for further requests."""

HAPROXY = Template("""
defaults
  mode $mode
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen coordinatord
  bind 127.0.0.1:$before
  server coordinatord 127.0.0.1:$behind
""")


@dataclass(frozen=True)
class Way:
    """One proxy with one configuration."""

    program: str
    configuration: Template
    mode: str = ""
    secured: bool = False
    """Whether the coordinator has TLS, which passes through."""

    def start(self, folder: Path, before: int, behind: int) -> Program:
        """Start it, from one port to another."""
        file = folder / "proxy.conf"
        file.write_text(self.configuration.substitute(folder=folder, before=before, behind=behind, mode=self.mode))
        if self.program == "nginx":
            return Program("nginx", "-e", "stderr", "-p", folder, "-c", file)
        return Program("haproxy", "-db", "-f", file)


WAYS = {
    "nginx": Way("nginx", NGINX),
    "HAProxy": Way("haproxy", HAPROXY, "http"),
    "HAProxy, TLS passed through": Way("haproxy", HAPROXY, "tcp", secured=True),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Return one of them that is installed."""
    way = WAYS[request.param]
    if shutil.which(way.program) is None:
        pytest.skip(f"{way.program} is not installed")
    return way


def is_connected_again(node: Node) -> bool:
    """Return whether a node has connected a second time."""
    return sum("connected to the coordinator" in line for line in node.lines) > 1


def present_round(cluster: Cluster) -> Round | None:
    """Return the round that runs; None while none does."""
    job = cluster.coordinator.job(cluster.job)
    if job is None or job["state"] != "running":
        return None
    return next((it for it in cluster.rounds() if it.number == job["round"] and len(it.workers) == 2), None)


@pytest.mark.slow
def test_nodes_come_back_through_a_proxy_that_is_started_again(way: Way, tmp_path: Path) -> None:
    """They come back to their round, unless the proxy takes longer than a node that is not heard is waited for."""
    with (
        Coordinator(*QUICK, home=tmp_path / "home" if way.secured else None) as coordinator,
        closing(PortReservation()) as port,
        Cluster(coordinator, "proxied") as cluster,
    ):
        with way.start(tmp_path, port.port, coordinator.port):
            nodes = [cluster.join(name, "--nnodes", "2", coord=f"127.0.0.1:{port.port}") for name in "ab"]
            cluster.await_round(2)
        for node in nodes:
            node.await_line("lost the coordinator")
        with way.start(tmp_path, port.port, coordinator.port):
            for node in nodes:
                wait_until("the node to be back", partial(is_connected_again, node))
            wait_until("the present round to run", lambda: present_round(cluster)).finish()
            assert [node.wait() for node in nodes] == [0, 0]
