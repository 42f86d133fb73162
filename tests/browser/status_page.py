"""The status page in a browser, as tests read it."""

from __future__ import annotations

from playwright.async_api import Page

from extproc.lab.stack.processes import until
from tests.extent import PATIENCE

_TABLE = """name => [...document.getElementById(`${name}-rows`).rows].map(row =>
    Object.fromEntries([...row.cells].map((cell, place) => [
        document.getElementById(`${name}-head`).rows[0].cells[place].textContent,
        cell.textContent,
    ])))"""
_FACTS = """id => Object.fromEntries([...document.querySelectorAll(`#${id} dt`)].map(
    term => [term.textContent, term.nextElementSibling.textContent]))"""
_POLLS = "Number(document.body.dataset.polls ?? 0)"

_ASK = "document.dispatchEvent(new Event('visibilitychange'))"
"""Makes the page poll at once."""

Row = dict[str, str]


class StatusPage:
    """The page, and what its browser reports."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requested: list[str] = []
        page.on("console", lambda one: self._reported(one.type, one.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))
        page.set_default_timeout(1000 * PATIENCE)

    async def next_poll(self) -> None:
        """Wait until the page shows a state that it asked for after now."""
        seen = await self.page.evaluate(_POLLS)
        # The next poll may have been on its way.
        await self.until(f"{_ASK}, {_POLLS} >= {seen + 2}")
        # Long tables are filled in several frames.
        await self.page.evaluate("new Promise(done => setTimeout(done, 200))")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true. The page's policy forbids Playwright's own way."""

        async def holds() -> bool:
            return bool(await self.page.evaluate(expression))

        await until(holds, PATIENCE, expression)

    async def table(self, name: str) -> list[Row]:
        """Return the rows of a table, by the titles of its columns."""
        rows: list[Row] = await self.page.evaluate(_TABLE, name)
        return rows

    async def facts(self, identity: str) -> Row:
        """Return the values of a list of facts, by their terms."""
        found: Row = await self.page.evaluate(_FACTS, identity)
        return found

    async def choose(self, model: str) -> None:
        """Show a model's endpoints and ring."""
        await self.page.click(f"#models-rows button:text-is('{model}')")
        await self.until(f"document.querySelector('.chosen').textContent === '{model}'")
        await self.next_poll()

    async def explain(self, body: str, headers: str = "", path: str = "") -> list[str]:
        """Explain a request, and return the steps."""
        await self.page.fill("#explain-body", body)
        await self.page.fill("#explain-headers", headers)
        if path:
            await self.page.fill("#explain-path", path)
        await self.page.evaluate("document.getElementById('explain-result').replaceChildren()")
        await self.page.click("#explain-form button")
        await self.page.wait_for_selector("#explain-result > *")
        return await self.page.locator(
            "#explain-result > ol > li, #explain-result > p"
        ).all_inner_texts()

    async def text(self, selector: str) -> str:
        """Return the text of an element."""
        return await self.page.locator(selector).first.inner_text()

    def _reported(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)
