// SPDX-License-Identifier: GPL-2.0-only
//! Fuzzed requests over the daemon's socket: the daemon answers or closes the connection, and
//! answers other clients afterwards.
//!
//! 1. The samples are one valid call of each method, and several calls in one input.
//! 2. `usher_fuzz` changes the samples at random, 64 inputs or for `USHER_FUZZ_MS`, and prints the
//!    seed. An input that takes more than 60 s fails the test.
//! 3. Each complete reply must be JSON. A second connection must get a reply to `Ping`.
//!
//! The requests are those of a user without processes, so that no request reaches a program of this
//! machine. Without root, the test is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;

use common::{World, connect_as};
use usher_fuzz::fuzz;

/// A user without processes, so that no request reaches a program of this machine.
const USER: u32 = 61_003;

#[test]
fn requests_over_the_socket() {
    if !rustix::process::geteuid().is_root() {
        usher_skip::skip!("requests over the socket: only root can act as another user");
        return;
    }
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let samples = samples();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let ping = b"{\"method\":\"org.usher.Usher1.Ping\"}\0";
    fuzz("requests_over_the_socket", &samples, |input| {
        let mut stream = connect_as(&world.socket(), USER);
        // An error is ignored: a daemon that rejects the input may close the connection before all
        // is sent.
        let _ = stream.write_all(input);
        let _ = stream.shutdown(Shutdown::Write);
        let mut replies = Vec::new();
        if stream.read_to_end(&mut replies).is_ok() {
            let whole = replies.split_inclusive(|&byte| byte == 0);
            for reply in whole.filter(|reply| reply.ends_with(&[0])) {
                let json = &reply[..reply.len() - 1];
                serde_json::from_slice::<serde_json::Value>(json).unwrap();
            }
        }
        let mut other = connect_as(&world.socket(), USER);
        other.write_all(ping).unwrap();
        let mut first = [0];
        other.read_exact(&mut first).unwrap();
        assert_eq!(first, *b"{");
    });
    assert_eq!(world.end(daemon), Some(0));
}

/// Returns sample inputs: every method, several calls in one input, and the methods of varlink
/// itself.
fn samples() -> Vec<Vec<u8>> {
    let calls = [
        ("Ping", r#"{}"#),
        ("Status", r#"{}"#),
        ("Explain", r#"{"program":"x264"}"#),
        (
            "Attach",
            r#"{"pid":2147483632,"name":"a","weight":1.5,"background":"usher"}"#,
        ),
        (
            "Attach",
            r#"{"pid":2147483632,"bounds":"0-3,8","group":"g","job":"1.0","uid":0,"command":{"argv":["a"],"path":"/bin"}}"#,
        ),
        ("Detach", r#"{"id":1}"#),
        ("Repeated", r#"{"id":1,"seconds":1.5}"#),
        (
            "Register",
            r#"{"pid":2147483632,"argv":["/bin/true","-x"],"cwd":"/","weight":1,"heartbeat":"/dev/shm/x","running":true}"#,
        ),
    ];
    let call = |(method, parameters): (&str, &str)| {
        format!("{{\"method\":\"org.usher.Usher1.{method}\",\"parameters\":{parameters}}}\0")
    };
    let all: Vec<String> = calls.into_iter().map(call).collect();
    let service = "{\"method\":\"org.varlink.service.GetInfo\",\"more\":true}\0";
    let described = "{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":{\"interface\":\"org.usher.Usher1\"}}\0";
    let several = [all.concat(), service.to_owned(), described.to_owned()];
    all.into_iter()
        .chain(several)
        .map(String::into_bytes)
        .collect()
}
