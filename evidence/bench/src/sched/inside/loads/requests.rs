// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and responses between two processes, as between the clients and the server of a
//! database (sysbench oltp). Each client thread has a connection of its own, a Unix socket, and a
//! thread of the server answers it.
//!
//! A client sends the CPU time of a request in microseconds, waits for the response, and records
//! the response time. It then sleeps for a random time. The server uses the CPU time and responds.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::burn::{TimeRange, burn, random};

/// Clients of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientLoad {
    /// Number of client threads.
    pub clients: usize,
    /// CPU time of the server for a request.
    pub work: TimeRange,
    /// Sleep of a client after each response.
    pub rest: TimeRange,
    /// Length of the measurement.
    pub time: Duration,
    /// Seed of the random times.
    pub seed: u64,
}

impl ClientLoad {
    /// Runs the clients against the server that listens at `socket`. Each client sends one request
    /// at least. Returns all response times in milliseconds.
    ///
    /// # Errors
    /// A connection fails.
    pub fn run(&self, socket: &Path) -> Result<Vec<f64>> {
        let connect = || UnixStream::connect(socket).context("connecting to the server");
        let streams: Result<Vec<UnixStream>> = (0..self.clients).map(|_| connect()).collect();
        let streams = streams?;
        let end = Instant::now() + self.time;
        thread::scope(|scope| {
            let clients = streams.into_iter().enumerate();
            let clients: Vec<_> = clients
                .map(|(at, stream)| scope.spawn(move || self.request(at, stream, end)))
                .collect();
            let mut all_ms = Vec::new();
            for client in clients {
                let result = client.join().map_err(|_| anyhow!("a client panicked"))?;
                all_ms.extend(result.context("sending requests")?);
            }
            Ok(all_ms)
        })
    }

    fn request(&self, at: usize, mut stream: UnixStream, end: Instant) -> io::Result<Vec<f64>> {
        let mut random = random(self.seed, at);
        let mut times_ms = Vec::new();
        loop {
            let work_us = self.work.draw(&mut random).as_micros() as u64;
            let sent = Instant::now();
            stream.write_all(&work_us.to_ne_bytes())?;
            stream.read_exact(&mut [0; 8])?;
            times_ms.push(sent.elapsed().as_secs_f64() * 1e3);
            if Instant::now() >= end {
                return Ok(times_ms);
            }
            thread::sleep(self.rest.draw(&mut random));
        }
    }
}

/// Accepts connections, and answers each in a thread of its own, until accepting fails.
pub fn serve(listener: &UnixListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || respond(stream));
    }
}

/// Answers the requests of a connection until the client closes it.
fn respond(mut stream: UnixStream) {
    let mut request = [0; 8];
    while stream.read_exact(&mut request).is_ok() {
        burn(Duration::from_micros(u64::from_ne_bytes(request)));
        if stream.write_all(&request).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_a_response() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || serve(&listener));
        let load = ClientLoad {
            clients: 2,
            work: TimeRange {
                from_us: 1,
                to_us: 3,
            },
            rest: TimeRange {
                from_us: 1,
                to_us: 3,
            },
            time: Duration::ZERO,
            seed: 1,
        };
        let times_ms = load.run(&socket).unwrap();
        assert_eq!(times_ms.len(), 2);
        assert!(times_ms.iter().all(|time| *time > 0.0));
        assert!(load.run(Path::new("/nonexistent")).is_err());
    }
}
