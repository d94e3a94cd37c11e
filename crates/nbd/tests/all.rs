//! The tests of NBD, client against server in one program: `--test all <module>::<part of a name>` runs some.
//! What they share is compiled and linked once, and long tests run beside each other.
//! What they are about: honest and hostile peers, TLS, crowds.

mod crowds;
mod fuzz;
mod hostile_client;
mod hostile_server;
mod roundtrip;
mod tls;
mod world;
