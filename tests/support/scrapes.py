"""A coordinator's answer to `GET /metrics`, parsed as Prometheus parses it."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The series of one scrape."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.helps = {family.name: family.documentation for family in families}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
        """The samples by name and labels."""

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of one series; fail if there is none."""
        found = self.samples.get((f"coordinatord_{name}", frozenset(labels.items())))
        assert found is not None, f"no {name}{labels} in this scrape; there are {sorted(self.named(name))}"
        return found

    def named(self, name: str) -> Iterator[str]:
        """Return all series of one name, as texts of their labels."""
        return (str(sorted(labels)) for called, labels in self.samples if called == f"coordinatord_{name}")

    @property
    def labels(self) -> dict[str, dict[str, set[str]]]:
        """Return, by name, which labels its series have, and their values."""
        found: dict[str, dict[str, set[str]]] = {}
        for name, labels in self.samples:
            values = found.setdefault(name, {})
            for label, value in labels:
                values.setdefault(label, set()).add(value)
        return found
