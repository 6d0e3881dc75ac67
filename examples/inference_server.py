"""Serve a model over HTTP. The first start compiles it; every restart loads it from the cache.

    python examples/inference_server.py --port 8000
    curl -d '[1, 2, 3, 4]' localhost:8000/predict
    curl localhost:8000/stats

Stop it with Ctrl-C and start it again: "1 compiled" becomes "1 cached".
"""

import argparse
import json
import signal
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

import fxpool

WIDTH = 4


def load_model() -> Any:
    """Return the compiled model. A real server would load weights; here a seed makes them the same at each start."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, 3), torch.nn.Softmax(-1)]
    model = torch.nn.Sequential(*layers).eval()
    return torch.compile(model, backend="fxpool")


class Handler(BaseHTTPRequestHandler):
    model: Any

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            row = torch.tensor([body], dtype=torch.float32)
            if row.shape != (1, WIDTH):
                raise ValueError(f"expected {WIDTH} numbers")
        except (TypeError, ValueError) as error:
            return self.answer(400, {"error": str(error)})
        with torch.inference_mode():
            self.answer(200, {"probabilities": self.model(row)[0].tolist()})

    def do_GET(self) -> None:
        stats = fxpool.stats()
        self.answer(200, {name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks")})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model that fxpool compiles.")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks a free port (default: 8000)")
    port = parser.parse_args().port

    start = time.perf_counter()
    Handler.model = load_model()
    with torch.inference_mode():
        Handler.model(torch.zeros(1, WIDTH))  # compile, or load, before the first request
    seconds = time.perf_counter() - start

    stats = fxpool.stats()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(
        f"ready on port {server.server_port} after {seconds:.1f} s: "
        f"{stats['compiles']['worker']} compiled, {stats['hits']} cached",
        flush=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exit as after Ctrl-C
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
