#!/usr/bin/env python3
"""A web server in a sandbox, and its copies.

The server is started once. Children of the sandbox have it running already, each
with what it has counted so far, and count on by themselves.

    FORKD_URL=http://127.0.0.1:8889 PYTHONPATH=sdk/python python3 examples/ports.py

Others reach a port through the daemon's TCP address, so that is where it is asked.
"""

from forkd import Sandbox

SERVER = """
import http.server

class Counter(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_GET(self):
        Counter.count += 1
        body = f"request {Counter.count} for {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Counter).serve_forever()
"""


def main() -> None:
    with Sandbox() as box:
        box.files.write("/root/server.py", SERVER)
        box.commands.start("python3 /root/server.py", detach=True)
        box.ports.wait(8000)
        print("for curl and browsers:", box.get_url(8000))
        for path in ("/a", "/b"):
            print("parent:", box.ports.request(8000, path).text)
        for child in box.fork(2):
            with child:
                print(f"{child.id}:", child.ports.request(8000, "/c").text)
        print("parent:", box.ports.request(8000, "/c").text)


if __name__ == "__main__":
    main()
