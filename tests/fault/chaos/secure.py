"""An etcd that is not open to all: TLS with client certificates, or users and passwords. Certificates that end after seconds, tokens that do."""

import os
import subprocess
import time

import etcd

SERVER_NAME = "etcd.test"
PASSWORDS = {"root": "rootpw", "job": "secret"}
CA_CONFIG = """[ca]
default_ca=d
[d]
database=index
new_certs_dir=.
rand_serial=yes
default_md=sha256
policy=p
unique_subject=no
certificate=ca.pem
private_key=ca.key
[p]
commonName=supplied
[server]
subjectAltName=DNS:etcd.test
extendedKeyUsage=serverAuth,clientAuth
[client]
extendedKeyUsage=clientAuth
"""


class Pki:
    """An authority, and certificates of its own making, in files NAME.pem and NAME.key."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)
        with open(self.path("ca.cnf"), "w", encoding="ascii") as f:
            f.write(CA_CONFIG)
        with open(self.path("index"), "w", encoding="ascii"):
            pass
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")

    def path(self, name):
        return os.path.join(self.folder, name)

    def _openssl(self, *args):
        done = subprocess.run(["openssl", *args], cwd=self.folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {args[0]}: {done.stderr}")

    def issue(self, name, kind, seconds=86400):
        """Takes the place of the one that was there, if any. When it ends, as time.time()."""
        ends = int(time.time()) + seconds
        stamp = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(ends))
        begins = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() - 3600))
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "new.key", "-out", "new.csr", "-subj", f"/CN={name}")
        self._openssl("ca", "-batch", "-config", "ca.cnf", "-extensions", kind, "-in", "new.csr", "-out", "new.pem", "-notext", "-startdate", begins, "-enddate", stamp)
        os.replace(self.path("new.key"), self.path(name + ".key"))
        os.replace(self.path("new.pem"), self.path(name + ".pem"))
        return ends

    def flags(self):
        """Of etcd."""
        return ["--cert-file", self.path("server.pem"), "--key-file", self.path("server.key"), "--trusted-ca-file", self.path("ca.pem"), "--client-cert-auth"]

    def settings(self):
        """Of the job."""
        return {"rendezvous.tls.ca": self.path("ca.pem"), "rendezvous.tls.cert": self.path("node.pem"), "rendezvous.tls.key": self.path("node.key"), "rendezvous.tls.server_name": SERVER_NAME}

    def context(self, name):
        return [self.path("ca.pem"), self.path(name + ".pem"), self.path(name + ".key")]


def token_flags(folder, ttl_s):
    """Of an etcd whose tokens live that long."""
    private, public = os.path.join(folder, "token.key"), os.path.join(folder, "token.pub")
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], capture_output=True, check=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], capture_output=True, check=True)
    return ["--auth-token", f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl={ttl_s}s", "--bcrypt-cost", "4"]


def enable_users(client, folder):
    """root, and job, who has the jobs' prefix alone. The job's settings."""
    prefix = "/elastic-run/"
    for user, password in PASSWORDS.items():
        client.call("/v3/auth/user/add", {"name": user, "password": password})
    client.call("/v3/auth/role/add", {"name": "job"})
    client.call("/v3/auth/role/grant", {"name": "job", "perm": {"permType": "READWRITE", "key": etcd.b64(prefix), "range_end": etcd.b64(etcd.prefix_end(prefix.encode()))}})
    for user, role in (("root", "root"), ("job", "job")):
        client.call("/v3/auth/user/grant", {"user": user, "role": role})
    client.call("/v3/auth/enable", {})
    etcd.login("root", PASSWORDS["root"])
    path = os.path.join(folder, "password")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
        f.write(PASSWORDS["job"] + "\n")
    return {"rendezvous.auth.user": "job", "rendezvous.auth.password_file": path}
