"""What the page needs of the server; the page itself is tried in a browser by tests/test_browser.py."""

import httpx


async def test_the_page_and_its_files_are_served_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert "text/html" in page.headers["content-type"]
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for file, kind in (("page.js", "javascript"), ("page.css", "css")):
        assert f"static/{file}" in page.text
        assert kind in (await client.get(f"/static/{file}")).headers["content-type"]


async def test_the_page_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    for path in ("/", "/static/page.js", "/static/page.css"):
        assert "//" not in (await client.get(path)).text.replace("</", "").replace("///", "").replace("// ", "")


async def test_the_knowledge_bases_are_listed(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/knowledge-bases")).json()["knowledge_bases"]
    assert [(kb["name"], kb["documents"]) for kb in listed] == [("default", 1), ("three", 3), ("空", 0)]
