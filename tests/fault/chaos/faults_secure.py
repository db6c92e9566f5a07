"""Faults of who may talk to etcd: tokens and certificates that end, certificates that are replaced."""

import os
import ssl
import time

import etcd
from catalogue import entry
from secure import Pki, token_flags

TOKEN_S = 3
CERTIFICATE_S = 20


def with_tokens(t):
    t.hosts.flags = token_flags(t.folder, TOKEN_S)
    t.hosts.users = True


@entry("store", "etcd's tokens are good for 3 s: each agent logs in anew, again and again, and nobody notices", params={"t": 8}, prepare=with_tokens, shape={"save_steps": 5}, during=(3,), detects=(),
       needs=("openssl",))
def token_expiry(t):
    old = etcd.authenticate(t.hosts.client.addresses[0], "root")
    t.pause(TOKEN_S + 1.5)
    said = t.hosts.refusal({"Authorization": old})
    t.must("invalid auth token" in said, f"a token that is not taken any more: {said}")


def with_certificates(seconds):
    def prepare(t):
        pki = t.hosts.pki = Pki(os.path.join(t.folder, "pki"))
        pki.issue("server", "server")
        pki.issue("admin", "client")
        t.hosts.certificate_ends = pki.issue("node", "client", int(seconds * max(1, t.clock.factor / 3)) if seconds else 86400)
        t.shape["set"] = {**t.shape.get("set", {}), **pki.settings()}
    return prepare


def restart_etcd(t):
    for i in range(len(t.hosts.members)):
        t.hosts.member_kill(i)
        t.hosts.member_start(i)
    t.hosts.wait_store(t.patience * t.clock.factor)


def serial(t):
    """Of the certificate that etcd shows."""
    address = t.hosts.client.addresses[0]
    connection = etcd.connect(address, 5)
    connection.connect()
    with connection.sock as s:
        return ssl.DER_cert_to_PEM_cert(s.getpeercert(binary_form=True))


@entry("store", "all certificates, etcd's and the nodes', are replaced by new ones, and etcd starts again with them", params={"t": 2}, prepare=with_certificates(None), shape={"save_steps": 5},
       during=(3,), detects=("store_lost",), bound_s=20, needs=("openssl",))
def certificates_replaced(t):
    before = serial(t)
    for name, kind in (("server", "server"), ("node", "client")):
        t.hosts.pki.issue(name, kind)
    restart_etcd(t)
    t.must(serial(t) != before, "another certificate that etcd shows")


def new_certificate(t):
    t.hosts.pki.issue("node", "client")


@entry("store", "the nodes' certificate ends, and etcd starts again: nobody gets in until there is a new one in its place", params={"t": 4}, prepare=with_certificates(CERTIFICATE_S),
       heal=new_certificate, shape={"save_steps": 5, "steps": 3000, "slow_ms": 2}, detects=("store_lost",), heal_bound_s=40, needs=("openssl",))
def certificate_expiry(t):
    t.pause(max(0, t.hosts.certificate_ends + 1.5 - time.time()))
    restart_etcd(t)
    said = t.hosts.refusal(context=t.hosts.pki.context("node"))
    t.must(said, f"a certificate that is not taken any more: {said}")  # etcd may just hang up
