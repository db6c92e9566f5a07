"""What the suite needs of etcd: its JSON gateway, and the records of the product in it."""

import base64
import http.client
import json
import ssl


HEADERS = {}
_tls = _user = None


class Unavailable(Exception):
    """No member answers."""


def b64(data):
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def prefix_end(prefix):
    return prefix[:-1] + bytes([prefix[-1] + 1])


def context(ca, cert, key):
    """The server's certificate has a name, and we call it by its address."""
    made = ssl.create_default_context(cafile=ca)
    made.check_hostname = False
    made.load_cert_chain(cert, key)
    return made


def secure(files):
    """From now on over TLS, with a certificate of our own: (ca, cert, key)."""
    global _tls  # pylint: disable=global-statement
    _tls = context(*files)


def authenticate(address, user, password=None):
    """A token."""
    password = password or _user[1]
    return ask(address, "/v3/auth/authenticate", {"name": user, "password": password}, 3, {})["token"]


def login(user, password):
    """From now on as that user, with a new token whenever etcd wants one."""
    global _user  # pylint: disable=global-statement
    _user = (user, password)


def connect(address, timeout, tls=None):
    host, port = address
    tls = tls or _tls
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=tls) if tls else http.client.HTTPConnection(host, port, timeout=timeout)


def ask(address, path, body, timeout, headers, tls=None):
    host, port = address
    connection = connect(address, timeout, tls)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as why:
        raise Unavailable(f"{host}:{port}: {why}") from why
    finally:
        connection.close()
    try:
        reply = json.loads(text)
    except ValueError as why:
        raise Unavailable(f"{host}:{port}: {text[:80]!r}") from why
    if answer.status != 200:
        raise Unavailable(f"{host}:{port}: {reply.get('error', text[:80])}")
    return reply


def headers(address):
    if _user and not HEADERS:
        HEADERS["Authorization"] = authenticate(address, *_user)
    return HEADERS


def post(address, path, body, timeout=3):
    try:
        return ask(address, path, body, timeout, headers(address))
    except Unavailable as why:
        if not _user or "auth token" not in str(why):
            raise
        HEADERS.clear()
        return ask(address, path, body, timeout, headers(address))


def keys_of(reply):
    return {base64.b64decode(kv["key"]).decode(): dict(kv, value=base64.b64decode(kv.get("value", ""))) for kv in reply.get("kvs", [])}


class Client:
    """Asks one member after the other."""

    def __init__(self, addresses):
        self.addresses = list(addresses)

    def call(self, path, body, timeout=3):
        why = None
        for address in list(self.addresses):
            try:
                return post(address, path, body, timeout)
            except Unavailable as e:
                why = e
                self.addresses.append(self.addresses.pop(0))
        raise why

    def get(self, key):
        return keys_of(self.call("/v3/kv/range", {"key": b64(key)})).get(key)

    def range_at(self, prefix):
        """All below a prefix, and the revision at which that is so."""
        reply = self.call("/v3/kv/range", {"key": b64(prefix), "range_end": b64(prefix_end(prefix.encode()))})
        return keys_of(reply), int(reply["header"]["revision"])

    def delete(self, key):
        return int(self.call("/v3/kv/deleterange", {"key": b64(key)}).get("deleted", 0))


class Fields:
    """A record of rendezvous/codec.c: type letter, version, then varints and texts."""

    def __init__(self, data, letter):
        if data[:1] != letter.encode():
            raise ValueError(f"a record '{letter}' begins with {data[:2]!r}")
        self.data, self.at = data, 2

    def number(self):
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self):
        value = self.number()
        return (value >> 1) ^ -(value & 1)

    def text(self):
        n = self.number()
        self.at += n
        return self.data[self.at - n:self.at].decode()


def member(data):
    f = Fields(data, "n")
    return {"incarnation": f.number(), "boot_id_hash": f.number(), "address": f.text(), "host": f.text()}


def assignment(data):
    f = Fields(data, "a")
    return {"generation": f.number(), "nonce": f.number(), "incarnation": f.number(), "group_rank": f.signed(), "first_rank": f.signed()}


def latest(data):
    f = Fields(data, "c")
    return {"generation": f.number(), "step": f.number(), "digest": f.text(), "path": f.text()}


def leader(data):
    return Fields(data, "l").text()
