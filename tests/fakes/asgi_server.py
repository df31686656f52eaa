"""ASGI server with OpenAI's API whose streams last a fixed time, for `EnergyMiddleware`.

`python -m tests.fakes.asgi_server PORT [SECONDS]` serves until it gets a signal.
"""

import asyncio
import json
import sys
import uuid

import uvicorn

from wattline.integrations.asgi import EnergyMiddleware

TOKENS = 20
USAGE = {"prompt_tokens": 30, "completion_tokens": TOKENS}


class StreamingServer:
    """Application whose streams have TOKENS texts in `seconds`."""

    def __init__(self, seconds):
        self._seconds = seconds

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["method"] == "GET":
            await self._answer(send, {"data": [{"id": "tiny"}]})
        else:
            body = json.loads((await receive())["body"])
            if body.get("stream"):
                await self._stream(send)
            else:
                await asyncio.sleep(self._seconds)
                await self._answer(
                    send, {"id": new_id(), "model": "tiny", "choices": [], "usage": USAGE}
                )

    async def _answer(self, send, document):
        await begin(send, b"application/json")
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})

    async def _stream(self, send):
        await begin(send, b"text/event-stream")
        answer = {"id": new_id(), "model": "tiny"}
        for _ in range(TOKENS):
            await asyncio.sleep(self._seconds / TOKENS)
            await event(send, {**answer, "choices": [{"index": 0, "delta": {"content": "a"}}]})
        await event(
            send, {**answer, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        )
        await event(send, {**answer, "choices": [], "usage": USAGE})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def new_id():
    return f"chatcmpl-{uuid.uuid4().hex}"


async def begin(send, kind):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def event(send, document):
    await send(
        {
            "type": "http.response.body",
            "body": b"data: %b\n\n" % json.dumps(document).encode(),
            "more_body": True,
        }
    )


async def lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


if __name__ == "__main__":
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    application = EnergyMiddleware(StreamingServer(seconds))
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
