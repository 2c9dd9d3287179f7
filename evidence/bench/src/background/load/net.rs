// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generators `load net` and `load sink`, the network benchmark of paper 2: a TCP connection
//! to a server that discards the data.
//!
//! 1. The client sends a line with the name of the connection and, if it sends in bursts, the
//!    number of bytes of a burst.
//! 2. The client sends units of 16 KiB until its work is done or its time is over.
//! 3. The server counts the bytes that arrive in each millisecond, in files with that name. Arrival
//!    shows when the network transmitted the bytes; sending only fills a buffer.
//! 4. After each burst, the server answers with one byte, for which the client waits.
//!
//! Reads and writes have a timeout of 100 ms, after which the request to end is checked; the waits
//! as a whole have no limit. At the end, the client waits without a limit until the server has read
//! all data. The line of the client may have at most 100 bytes. The server has one thread per
//! connection and no limit on connections.
//!
//! `iperf3` cannot replace these commands: it neither pauses nor waits for a reply between bursts,
//! and reports the arrived bytes for intervals of at least 100 ms, not of 1 ms. The experiments with
//! data that is sent without pauses also run `iperf3`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::duty_cycle::{Summary, drive, print, stop_flag};
use super::limits::LoadLimits;
use super::records::{WorkRecorder, monotonic_ns};

/// Number of bytes of one call of `send`, which is one unit of work.
pub const UNIT_BYTES: usize = 16 << 10;
/// Timeout of a read or write. A request to end is noticed after each timeout.
const WAIT: Duration = Duration::from_millis(100);

/// Arguments of `load net`.
#[derive(Debug, Clone, clap::Args)]
pub struct NetArgs {
    /// Amount of work; a unit is 16 KiB
    #[command(flatten)]
    pub limits: LoadLimits,
    /// Send to the server at this address
    #[arg(long)]
    pub to: SocketAddr,
    /// Name the connection at the server
    #[arg(long, default_value = "flow")]
    pub name: String,
}

/// Arguments of `load sink`.
#[derive(Debug, Clone, clap::Args)]
pub struct SinkArgs {
    /// Listen at this address
    #[arg(long)]
    pub listen: SocketAddr,
    /// Write NAME.counter and NAME.bins (bytes) of each connection into this directory
    #[arg(long)]
    pub dir: PathBuf,
    /// Value of the monotonic clock at the first millisecond, in ns
    #[arg(long, default_value_t = 0)]
    pub epoch_ns: u64,
}

/// Runs the client: sends the data, then waits until the server has received all of it.
pub fn run(args: &NetArgs) -> Result<()> {
    print(&send(args, &*stop_flag()?)?)
}

/// Sends until the limit of work or time is reached, or until `stop` is set. The measured time ends
/// when the server has received all data.
pub fn send(args: &NetArgs, stop: &AtomicBool) -> Result<Summary> {
    let mut stream =
        TcpStream::connect(args.to).with_context(|| format!("connecting to {}", args.to))?;
    let burst = args.limits.burst;
    let reply_bytes = burst.map(|units| format!(" {}", units * UNIT_BYTES as u64));
    let hello = format!("{}{}\n", args.name, reply_bytes.unwrap_or_default());
    stream.write_all(hello.as_bytes())?;
    stream.set_write_timeout(Some(WAIT))?;
    stream.set_read_timeout(Some(WAIT))?;
    let start_ns = monotonic_ns();
    let unit = vec![0x55; UNIT_BYTES];
    let mut sent = 0;
    let mut summary = drive(&args.limits, stop, || {
        let units = send_unit(&mut stream, &unit, stop)?;
        sent += units.unwrap_or(0);
        if burst.is_some_and(|burst| sent % burst == 0) && units.is_some() {
            read_reply(&mut stream, stop)?;
        }
        Ok(units)
    })?;
    stream.set_read_timeout(None)?;
    stream.shutdown(Shutdown::Write)?;
    if !stop.load(Ordering::Relaxed) {
        // The server closes the connection after it has read all data.
        stream.read_to_end(&mut Vec::new())?;
    }
    summary.seconds = (monotonic_ns() - start_ns) as f64 / 1e9;
    Ok(summary)
}

fn send_unit(stream: &mut TcpStream, unit: &[u8], stop: &AtomicBool) -> Result<Option<u64>> {
    let mut sent = 0;
    while sent < unit.len() {
        match stream.write(&unit[sent..]) {
            Ok(n) => sent += n,
            Err(e) if is_wait(e.kind()) && stop.load(Ordering::Relaxed) => return Ok(None),
            Err(e) if is_wait(e.kind()) => {}
            Err(e) => return Err(e).context("sending"),
        }
    }
    Ok(Some(1))
}

/// Waits for the server's answer to a burst.
fn read_reply(stream: &mut TcpStream, stop: &AtomicBool) -> Result<()> {
    let mut byte = [0];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut byte) {
            Ok(0) => anyhow::bail!("the server has closed the connection"),
            Ok(_) => return Ok(()),
            Err(e) if is_wait(e.kind()) => {}
            Err(e) => return Err(e).context("waiting for a reply of the server"),
        }
    }
    Ok(())
}

fn is_wait(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Runs the server until SIGTERM or SIGINT.
pub fn sink(args: &SinkArgs) -> Result<()> {
    let stop = stop_flag()?;
    let listener =
        TcpListener::bind(args.listen).with_context(|| format!("listening on {}", args.listen))?;
    serve(&listener, &args.dir, args.epoch_ns, &stop)
}

/// Accepts connections and discards their data until `stop` is set.
pub fn serve(listener: &TcpListener, dir: &Path, epoch_ns: u64, stop: &AtomicBool) -> Result<()> {
    listener.set_nonblocking(true)?;
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || {
                        if let Err(error) = discard(stream, dir, epoch_ns, stop) {
                            eprintln!("usher-bench sink: {error:#}");
                        }
                    });
                }
                Err(e) if is_wait(e.kind()) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(e).context("accepting"),
            }
        }
        Ok(())
    })
}

fn discard(mut stream: TcpStream, dir: &Path, epoch_ns: u64, stop: &AtomicBool) -> Result<()> {
    stream.set_nonblocking(false)?;
    let (name, burst_bytes) = hello(&mut stream)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut meter = WorkRecorder::new(&LoadLimits {
        work: None,
        seconds: None,
        burst: None,
        usage: 100.0,
        period_ms: 100.0,
        counter: Some(dir.join(format!("{name}.counter"))),
        bins: Some(dir.join(format!("{name}.bins"))),
        epoch_ns,
        phases: None,
    })?;
    let mut buffer = vec![0; 256 << 10];
    let mut unanswered = 0;
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                meter.add(monotonic_ns(), n as u64)?;
                unanswered += n as u64;
                let Some(burst) = burst_bytes else { continue };
                while unanswered >= burst {
                    unanswered -= burst;
                    stream.write_all(&[0])?;
                }
            }
            // While no data arrives, the counts are written to the files.
            Err(e) if is_wait(e.kind()) => meter.flush()?,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Err(e) => return Err(e).context("receiving"),
        }
    }
    meter.flush()
}

/// Reads the first line of a connection: its name, and the number of bytes of a burst if the client
/// waits for an answer to each burst.
fn hello(stream: &mut TcpStream) -> Result<(String, Option<u64>)> {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' && line.len() < 100 {
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).context("reading the name of a connection")?;
    let (name, burst) = match line.split_once(' ') {
        None => (line.as_str(), None),
        Some((name, burst)) => (
            name,
            Some(burst.parse().with_context(|| {
                format!("the number of bytes of a burst is invalid in the line {line:?}")
            })?),
        ),
    };
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    anyhow::ensure!(
        plain && !name.is_empty() && burst != Some(0),
        "a connection has the invalid name {line:?}"
    );
    Ok((name.to_owned(), burst))
}
