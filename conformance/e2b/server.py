"""A server for the tests of ports: it tells what it was asked, streams, and
speaks WebSocket."""

import base64, hashlib, http.server, json, os, sys, time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self):
        data = self.body()
        self.answer(json.dumps({"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}).encode())

    def do_GET(self):
        if self.path == "/events":
            return self.events()
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.websocket()
        if self.path.startswith("/bytes/"):
            return self.answer(b"x" * int(self.path.split("/")[2]), "application/octet-stream")
        told = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "who": open("/tmp/who").read()}
        self.answer(json.dumps(told).encode())

    def events(self):
        """Sends the next event only when the last one is known to have arrived."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(3):
            while i and not os.path.exists("/tmp/event-%d" % i):
                time.sleep(0.02)
            event = b"data: %d\n\n" % i
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def websocket(self):
        accept = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode())
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept.digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            mask, data = self.rfile.read(4), b""
            for i, byte in enumerate(self.rfile.read(head[1] & 127)):
                data += bytes([byte ^ mask[i % 4]])
            self.wfile.write(bytes([0x81, len(data)]) + data.upper())


open("/tmp/who", "w").write(sys.argv[2])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
