#!/bin/bash
# A small crate is built, changed and built again, with its target directory on the store.
# case: timeout_s=90
set -eu
# `set -e` does not see a failing `! command`.
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
mkdir -p crate/src
cat >crate/Cargo.toml <<'TOML'
[package]
name = "crate-on-store"
version = "0.1.0"
edition = "2021"
[workspace]
TOML
cat >crate/build.rs <<'RS'
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    std::fs::write(format!("{out}/made.rs"), "pub const MADE: u32 = 40;").unwrap();
}
RS
for i in $(seq 30); do echo "pub fn f$i(x: u32) -> u32 { (0..x).map(|v| v.wrapping_mul($i)).sum() }" >"crate/src/m$i.rs"; done
{
    echo 'include!(concat!(env!("OUT_DIR"), "/made.rs"));'
    for i in $(seq 30); do echo "pub mod m$i;"; done
} >crate/src/lib.rs
echo 'fn main() { println!("{}", crate_on_store::MADE + crate_on_store::m2::f2(2)); }' >crate/src/main.rs
cd crate
export CARGO_TARGET_DIR=$CASE_DIR/target CARGO_INCREMENTAL=1
cargo build --offline
[ "$("$CARGO_TARGET_DIR/debug/crate-on-store")" = 42 ]
echo "pub fn f2(_: u32) -> u32 { 5 }" >src/m2.rs
cargo build --offline
[ "$("$CARGO_TARGET_DIR/debug/crate-on-store")" = 45 ]
# Nothing changed: times must be kept well enough for cargo to see it.
cargo build --offline 2>&1 | tee "$SCRATCH/third"
refused grep -q Compiling "$SCRATCH/third"
cargo test --offline
cargo clean
