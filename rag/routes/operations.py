"""Health, and the page."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from rag.service import Service

router = APIRouter()
WEB = Path(__file__).parent.parent / "web"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, Any]:
    """The engine answers; 503 when it has died or the service is stopping."""
    service: Service = request.app.state.service
    await service.engine.health()
    return {"status": "ready", "model": service.engine.model, "unfinished_requests": service.engine.unfinished}


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The page that asks."""
    return FileResponse(WEB / "index.html", headers=PAGE_HEADERS)
