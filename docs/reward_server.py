"""An example of a reward server, with Python's standard library and Pillow: how close images are to a colour.

    python docs/reward_server.py --port 8765

In Darkroom: the reward model "Reward server (HTTP)" with the address http://127.0.0.1:8765/score. Replace `score` by a
reward model of your own, with whatever packages it needs; this file does not need Darkroom's environment.
"""

import argparse
import base64
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image, ImageStat

TARGET = (255, 128, 0)


def score(image: Image.Image, prompt: str) -> float:
    """Return a number, higher is better; None for an image without a score."""
    means = ImageStat.Stat(image).mean
    return 1 - sum(abs(mean - wanted) for mean, wanted in zip(means, TARGET, strict=True)) / (3 * 255)


class Handler(BaseHTTPRequestHandler):
    """Answers {"prompts": [...], "images": [...]} with {"scores": [...]}."""

    def do_POST(self) -> None:
        """Score a batch."""
        try:
            batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            images = [Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png in batch["images"]]
            answer = {"scores": [score(image, prompt) for image, prompt in zip(images, batch["prompts"], strict=True)]}
            self.reply(200, answer)
        except Exception as error:  # the run then shows this sentence
            self.reply(500, {"error": str(error)})

    def reply(self, status: int, answer: dict) -> None:
        """Send an answer as JSON."""
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)  # 0: any free one
    # Only this computer can reach 127.0.0.1.
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"Listening at http://127.0.0.1:{server.server_port}/score", flush=True)
    server.serve_forever()
