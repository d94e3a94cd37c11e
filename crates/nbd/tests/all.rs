//! The tests of NBD, client against server, in one program: `--test all <module>::<part of a name>`
//! runs some. Their shared code is compiled and linked once, and long tests run concurrently.
//! Subjects: honest and hostile peers, TLS, crowds.

mod crowds;
mod fuzz;
mod hostile_client;
mod hostile_server;
mod roundtrip;
mod tls;
mod world;
