from __future__ import annotations

from tests.adapters.documents import sample, telemetry_of
from tests.core.builders import router


class Source:
    """A source whose document was confirmed at a known time."""

    age = 0.0

    def __str__(self) -> str:
        return "ConfigMap ns/models"


def test_age_is_read_at_each_scrape() -> None:
    telemetry, source = telemetry_of(router()), Source()
    assert sample(telemetry, "extproc_config_age_seconds") == 0
    telemetry.configuration.source = source
    for source.age in (3.5, 70.25):
        assert sample(telemetry, "extproc_config_age_seconds") == source.age


def test_state_names_the_source_its_age_and_the_last_result() -> None:
    configuration = telemetry_of(router()).configuration
    nothing = {"source": None, "age_seconds": 0, "last_reload_successful": False}
    assert configuration.state == nothing
    source = Source()
    source.age = 1.23456
    configuration.source = source
    configuration.reloaded(successfully=True)
    assert configuration.state == {
        "source": "ConfigMap ns/models",
        "age_seconds": 1.235,
        "last_reload_successful": True,
    }
    configuration.reloaded(successfully=False)
    assert configuration.state["last_reload_successful"] is False
