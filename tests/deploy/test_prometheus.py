"""The alerts and the dashboard use what a coordinator exports: names and labels, also with a real Prometheus."""

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinatord.core.rounds.state.durable import State
from nodeclient.host.ports import PortReservation
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, TIMEOUT_S, Program, run, wait_until
from tests.support.scrapes import Scrape

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "coordinatord.rules.yml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "coordinatord.json"

JOB = "training"
STEPS = "import time, workerlib\nfor step in range(10**6):\n    workerlib.step(step)\n    time.sleep(0.01)"
"""A worker that takes steps until it is ended."""

OF_THE_TARGET = {"job", "instance"}
"""Labels that Prometheus adds."""

SELECTOR = re.compile(r"\b((?:coordinatord|process)_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*\\?"([^"\\]*)')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")


class Prometheus(Program):
    """A Prometheus with the example's configuration, which scrapes a coordinator often."""

    def __init__(self, coordinator: Coordinator, folder: Path) -> None:
        """Start it, in a folder of its own."""
        config, token = CONFIG.read_text(), folder / "coordinatord.token"
        [told] = re.findall(r"`coordinatord (token new .*) --output FILE`", config)
        made = run(BIN / "coordinatord", *told.split(), "--output", token, "--state-dir", coordinator.state)
        assert made.returncode == 0, made.stderr
        for theirs, ours in (
            ("15s", "200ms"),
            ("localhost:29400", coordinator.endpoint),
            ("/etc/prometheus/coordinatord.token", str(token)),
            ("/etc/prometheus/coordinatord.pem", str(coordinator.state / "security" / "certificate.pem")),
        ):
            assert theirs in config
            config = config.replace(theirs, ours)
        (folder / CONFIG.name).write_text(config)
        shutil.copy(RULES, folder)
        self._port = PortReservation()
        super().__init__(
            "prometheus",
            f"--config.file={folder / CONFIG.name}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port.port}",
        )

    def close(self) -> None:
        """End it, and release its port."""
        super().close()
        self._port.close()

    def ask(self, path: str, **parameters: str) -> Any:
        """Send a request to its API; return None while it does not serve yet."""
        url = f"http://127.0.0.1:{self._port.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        assert self.reading, f"prometheus has ended:\n{self.output}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        except urllib.error.URLError:
            return None


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Yield a coordinator, as it is by default, with a job that has just begun."""
    home = tmp_path_factory.mktemp("config")
    with Coordinator("--settle", "0.1", home=home) as coordinator, Cluster(coordinator, JOB) as cluster:
        disk = tmp_path_factory.mktemp("steps")
        cluster.join("a", "--nnodes", "1:2", "--persist", str(disk), command=(sys.executable, "-c", STEPS))
        yield coordinator


@pytest.fixture(scope="module")
def started(serving: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus | None]:
    """Start a Prometheus early: it does not scrape before it has run for 5 s, whatever the configuration says."""
    if shutil.which("prometheus") is None:
        yield None
        return
    with Prometheus(serving, tmp_path_factory.mktemp("prometheus")) as program:
        yield program


@pytest.fixture(scope="module")
def trained(serving: Coordinator, started: Prometheus | None) -> Coordinator:
    """Return a coordinator with a job that has come as far as to show a pace."""
    del started
    pace = ("coordinatord_job_steps_per_second", frozenset({("job_id", JOB)}))
    wait_until("the pace of a job", lambda: scrape(serving).samples.get(pace, 0) > 0)
    return serving


@pytest.fixture(scope="module")
def prometheus(trained: Coordinator, started: Prometheus | None) -> Prometheus:
    """Return a Prometheus that has scraped a coordinator with a job that trains."""
    del trained
    assert started is not None, "who asks for it is skipped where there is none"
    wait_until("two scrapes", lambda: has_data(started, "rate(coordinatord_heartbeats_total[1m]) > 0"))
    return started


@pytest.fixture(scope="module")
def shown(trained: Coordinator) -> Scrape:
    """Return the scrape of a coordinator with a job that trains."""
    return scrape(trained)


def scrape(coordinator: Coordinator) -> Scrape:
    """Return what a coordinator shows now."""
    return Scrape(coordinator.fetch("/metrics"))


def promtool(*arguments: str | Path, words: str = "") -> None:
    """Have promtool check something; fail with its errors."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, input=words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> list[str]:
    """Return the dashboard's queries, with values in the place of its variables."""
    written: list[str] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            written.extend(value for key, value in part.items() if key == "expr")
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            walk(inner)

    walk(json.loads(DASHBOARD.read_text()))
    return [expression.replace("$__rate_interval", "1m").replace("$job_id", ".*") for expression in written]


# Names


@pytest.mark.slow
@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_every_series_that_is_named_exists_with_these_labels(file: Path, shown: Scrape) -> None:
    selectors = SELECTOR.findall(file.read_text())
    assert len(selectors) > 10
    for name, matchers in selectors:
        assert name == "up" or name in shown.labels, f"a coordinator shows no {name}"
        for label, values in MATCHER.findall(matchers):
            assert label in OF_THE_TARGET or label in shown.labels[name], f"{name} has no label {label}"
            if label not in {*OF_THE_TARGET, "job_id"}:
                known = set(State) if name == "coordinatord_job_state" else shown.labels[name][label]
                assert set(values.split("|")) <= known, f"{name} with {label}={values}"


@pytest.mark.slow
@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_every_label_that_is_grouped_by_or_shown_exists(file: Path, shown: Scrape) -> None:
    text = file.read_text()
    known = {label for labels in shown.labels.values() for label in labels} | OF_THE_TARGET
    named = {label.strip() for labels in GROUPING.findall(text) for label in labels.split(",")}
    named |= set(LEGEND.findall(text)) | set(re.findall(r"\$labels\.(\w+)", text))
    assert named
    assert named <= known


@pytest.mark.slow
def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "job_id"}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"${datasource}"}
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(corners) == len(panels), "no panel lies upon another"


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    alerts = RULES.read_text().split("- alert: ")[1:]
    assert len(alerts) > 10
    for alert in alerts:
        assert all(f"{part}:" in alert for part in ("expr", "severity", "summary", "description", "action")), alert


@pytest.mark.slow
def test_what_alerts_tell_people_to_run_exists() -> None:
    named = set(re.findall(r"nodeclient (\w+)", RULES.read_text())) - {"at"}
    known = re.findall(r"^    (\w+) ", run(BIN / "nodeclient", "--help").stdout, re.MULTILINE)
    assert len(named) > 3
    assert named <= set(known)


def test_every_alert_is_seen_to_fire() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tests = Path(__file__).with_name("coordinatord.rules.test.yml").read_text()
    assert [alert for alert in alerts if f'alertname="{alert}"' not in tests] == []


# promtool


@needs_promtool
@pytest.mark.slow
def test_promtool_has_nothing_against_what_is_shown(trained: Coordinator) -> None:
    promtool("check", "metrics", words=trained.fetch("/metrics"))


@needs_promtool
@pytest.mark.slow
def test_promtool_has_nothing_against_the_configuration_and_its_rules() -> None:
    promtool("check", "config", "--syntax-only", CONFIG)  # it would look for the token, and there is none here


@needs_promtool
@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", Path(__file__).with_name("coordinatord.rules.test.yml"))


# Prometheus


def has_data(prometheus: Prometheus, expression: str) -> bool:
    """Return whether an expression has a value now; fail if Prometheus does not understand it."""
    answer = prometheus.ask("query", query=expression)
    return answer is not None and bool(answer["result"])


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_takes_what_a_coordinator_shows(prometheus: Prometheus) -> None:
    [target] = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    [series] = prometheus.ask("query", query="coordinatord_job_state")["result"]
    assert series["metric"]["job_id"] == JOB
    assert series["metric"]["job"] == "coordinatord", "no label of ours is in the way of one of Prometheus' own"
    kinds = prometheus.ask("metadata", metric="coordinatord_recovery_seconds")
    assert kinds["coordinatord_recovery_seconds"][0]["type"] == "histogram"


@needs_prometheus
@pytest.mark.slow
def test_all_that_the_dashboard_asks_for_has_an_answer(prometheus: Prometheus) -> None:
    asked = expressions()
    assert len(asked) > 20
    for expression in asked:
        if expression.endswith("> 0"):
            has_data(prometheus, expression)  # it is understood, but nothing may have happened
        else:
            wait_until(expression, partial(has_data, prometheus, expression))


@needs_prometheus
@pytest.mark.slow
def test_a_job_that_trains_rouses_nobody(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_until("each rule to be looked at", evaluated)
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
