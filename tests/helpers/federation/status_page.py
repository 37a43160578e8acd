"""A status page that is served in this process."""

import http.client
import threading
from contextlib import contextmanager

from fedran.federation.status.web import StatusServer


@contextmanager
def serving(reader):
    """A running ``StatusServer``, shut down at the end."""
    with StatusServer(reader) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def request(server, path="/", method="GET", host="127.0.0.1", headers=()):
    """Status code, body and headers of one request."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    link.putrequest(method, path, skip_host=True)
    for name, value in (*([("Host", host)] if host else []), *headers):
        link.putheader(name, value)
    link.endheaders()
    reply = link.getresponse()
    body = reply.read().decode()
    link.close()
    return reply.status, body, reply.headers
