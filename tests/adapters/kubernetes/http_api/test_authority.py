"""Certificate authorities that are renewed while the sidecar runs."""

from __future__ import annotations

import pytest

from extproc.adapters.kubernetes.errors import Unreachable
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.http_api.secure import NEW, OLD, SecureServer, bundle
from tests.adapters.kubernetes.http_api.servers import MAPS
from tests.adapters.kubernetes.reflector.scenes import following

pytestmark = pytest.mark.usefixtures("quick")


class TestAuthority:
    async def test_moves_without_a_failed_request(
        self, secure: SecureServer, secure_api: KubernetesApi, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with following(secure_api, "ns") as running:
            await secure.put("a")
            await eventually(lambda: "a" in running.latest)
            secure.bundle.write_bytes(bundle(OLD, NEW))
            await secure.move_to(NEW)
            await secure_api.get(MAPS, {})
            await secure.put("b")
            await eventually(lambda: "b" in running.latest)
            secure.bundle.write_bytes(bundle(NEW))
            await secure.process.drop_watches()
            await secure.put("c")
            await eventually(lambda: "c" in running.latest)
            assert running.lists == {"ok": 1}
        # The server resets connections when it moves; no certificate was refused.
        assert "CERTIFICATE_VERIFY_FAILED" not in str([one.__dict__ for one in caplog.records])

    async def test_unknown_one_is_trouble_until_the_bundle_has_it(
        self, secure: SecureServer, secure_api: KubernetesApi, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with following(secure_api, "ns") as running:
            await secure.put("a")
            await eventually(lambda: "a" in running.latest)
            await secure.move_to(NEW)
            await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in running.trouble)
            assert "CERTIFICATE_VERIFY_FAILED" in str([one.__dict__ for one in caplog.records])
            confirmed = running.reflector.confirmed_at
            failed = running.watches["unreachable"]
            await eventually(lambda: running.watches["unreachable"] >= failed + 2)
            assert running.reflector.confirmed_at == confirmed, "its age grows"
            assert running.latest == {"a": ""}
            secure.bundle.write_bytes(bundle(OLD, NEW))
            await secure.put("b")
            await eventually(lambda: "b" in running.latest)
            assert not running.trouble

    @pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB", None])
    async def test_unreadable_bundle_leaves_the_last_one_in_use(
        self,
        content: bytes | None,
        secure: SecureServer,
        secure_api: KubernetesApi,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        await secure_api.get(MAPS, {})
        if content is None:
            secure.bundle.unlink()
        else:
            secure.bundle.write_bytes(content)
        for _ in range(3):
            await secure_api.get(MAPS, {})
        messages = [record.getMessage() for record in caplog.records]
        assert messages == ["credentials not readable, last ones kept"]
        secure.bundle.write_bytes(bundle(NEW))
        await secure.move_to(NEW)
        await secure_api.get(MAPS, {})

    async def test_untrusted_server_is_refused(
        self, secure: SecureServer, secure_api: KubernetesApi
    ) -> None:
        secure.bundle.write_bytes(bundle(NEW))
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await secure_api.get(MAPS, {})
