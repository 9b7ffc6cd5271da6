"""vLLM's own OpenAI-compatible server, with the options that our engine starts vLLM with."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from llm.models import resolve
from llm.options import EngineOptions
from llm.starting.launch import _on_cpu
from tests.adapters import write_adapter

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
WINDOW = 2048
ADAPTER = "poet"

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # as `fast_start`
}


@dataclass(frozen=True)
class VLLMServer:
    """A running server; `options` are those with which our engine does the same."""

    address: str
    options: EngineOptions

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"

    def unfinished(self) -> int:
        """Requests running or waiting."""
        lines = httpx.get(f"{self.address}/metrics", trust_env=False).text.splitlines()
        found = [
            line for line in lines if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
        ]
        assert len(found) == 2
        return sum(int(float(line.split()[-1])) for line in found)


@contextmanager
def serving_vllm(folder: Path) -> Iterator[VLLMServer]:
    """Start the server in a process group of its own, which is killed at the end; its output goes into `folder`."""
    options = EngineOptions(
        model=MODEL,
        max_model_len=WINDOW,
        kv_cache_gib=0.5,
        adapters={ADAPTER: str(write_adapter(folder / ADAPTER))},
        max_adapters=1,
        fast_start=True,
    )
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port), *_arguments(options)]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = VLLMServer(f"http://127.0.0.1:{port}", options)
    try:
        _wait_until_healthy(server, process, log)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _arguments(options: EngineOptions) -> list[str]:
    named = {
        "host": "127.0.0.1",
        "model": resolve(MODEL),
        "served_model_name": MODEL,
        "max_model_len": WINDOW,
        "scheduling_policy": "priority",
        "structured_outputs_config": json.dumps({"disable_any_whitespace": True, "backend": "xgrammar"}),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "enable_prompt_tokens_details": True,
        "enable_lora": True,
        "max_loras": 2,  # one more than adapters, as our engine does
        "max_lora_rank": 16,
        "lora_modules": f"{ADAPTER}={options.adapters[ADAPTER]}",
        "uvicorn_log_level": "warning",
    } | _on_cpu(options)
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in named.items()]
    return [part for flag, value in pairs for part in ([flag] if value is True else [flag, str(value)])]


def _wait_until_healthy(server: VLLMServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(1200):
        try:
            process.wait(0.25)  # the pace of the questions; returns at once when the server dies
        except subprocess.TimeoutExpired:
            if _is_healthy(server.address):
                return
        else:
            break
    raise AssertionError(f"vLLM's server did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
