// SPDX-License-Identifier: GPL-2.0-only
//! Metrics for Prometheus, in the OpenMetrics text format, over HTTP on a Unix socket or a loopback
//! port. The option `--metrics` switches the metrics on.
//!
//! 1. A thread accepts connections, and each scrape is answered on a thread of its own. At most 16
//!    scrapes run at a time; further connections are closed.
//! 2. The request is read up to its empty line, or up to 8 KiB, and is then answered. GET gets the
//!    page for any path, another method status 405. If the control loop has ended, the status is
//!    503.
//! 3. Each read, and each write of 16 KiB, waits only for the rest of 5 s ([`SCRAPE_MAX`]).
//!    Otherwise the connection is closed.
//!
//! The time limit does not cover the request to the control loop for its state. A peer that accepts
//! only parts of a write can prolong the write in progress. If no descriptor is left, the thread
//! accepts no connection for 20 ms. A page costs a pass over the programs and loans.
//!
//! `program_metrics` contains the metrics of single programs. `docs/metrics.md` lists all metrics.

mod program_metrics;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use usher_host::engine::Status;
use usher_model::SeatMode;

use super::view;
use crate::runtime;

/// The address at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port of this machine that other machines cannot reach.
    Loopback(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("the text after unix: must be a path".to_owned()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "give unix:PATH, or an address with a port such as 127.0.0.1:9464".to_owned()
        })?;
        match address.ip().is_loopback() {
            true => Ok(Self::Loopback(address)),
            false => Err(format!(
                "{} is not a loopback address: metrics are served only to this machine",
                address.ip()
            )),
        }
    }
}

/// Measurements of the daemon, in addition to the counts of the engine.
#[derive(Debug, Clone)]
pub struct Timings {
    /// Seconds from the arrival of a registration to the program's seat.
    seating: Histogram,
}

/// Upper ends of the buckets of the histogram of seating times, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

impl Default for Timings {
    fn default() -> Self {
        Self {
            seating: Histogram::new(BUCKETS),
        }
    }
}

impl Timings {
    /// Counts an admitted program.
    pub fn seated(&self, after: Duration) {
        self.seating.observe(after.as_secs_f64());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabel {
    mode: &'static str,
}

/// Returns the page for a scrape.
///
/// # Errors
/// The encoder failed.
pub fn page(status: &Status, timings: &Timings) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("usher");
    register_seats(&mut registry, status);
    register_background(&mut registry, status);
    program_metrics::register(&mut registry, status);
    register_loop(&mut registry, status);
    register_predictions(&mut registry, status);
    registry.register_with_unit(
        "seating",
        "Time from the registration of a program to its seat",
        Unit::Seconds,
        timings.seating.clone(),
    );
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Registers where programs run, and which program owns each CPU.
fn register_seats(registry: &mut Registry, status: &Status) {
    let programs = Family::<ModeLabel, Gauge>::default();
    for (mode, label) in MODES {
        let seated = status.programs.iter().filter(|p| p.background.is_none());
        let count = seated.filter(|p| p.mode == mode).count();
        programs
            .get_or_create(&ModeLabel { mode: label })
            .set(count as i64);
    }
    let background = status.programs.iter().filter(|p| p.background.is_some());
    programs
        .get_or_create(&ModeLabel { mode: "background" })
        .set(background.count() as i64);
    registry.register(
        "programs",
        "Managed programs, by the way in which they share the CPUs",
        programs,
    );
    let pinned = status.programs.iter().filter(|p| p.pinned_to.is_some());
    registry.register(
        "pinned_programs",
        "Programs without a seat because they pinned threads",
        ConstGauge::new(pinned.count() as i64),
    );
    let owned = |p: &usher_host::engine::ProgramStatus| match p.mode {
        Some(SeatMode::Seated) => {
            view::seat(p, status).map_or(0, |c| c.minus(&p.borrowed).len() + p.lent.len())
        }
        _ => 0,
    };
    let seats: usize = status.programs.iter().map(owned).sum();
    let lent: usize = status.plan.loans.iter().map(|loan| loan.cpus.len()).sum();
    for (name, help, cpus) in [
        ("seat_cpus", "CPUs that belong to a program's seat", seats),
        (
            "lent_cpus",
            "CPUs that a program uses outside its seat",
            lent,
        ),
        (
            "usable_cpus",
            "CPUs that are online and may be used",
            status.usable.len(),
        ),
    ] {
        registry.register(name, help, ConstGauge::new(cpus as i64));
    }
}

/// Registers the state of background work.
fn register_background(registry: &mut Registry, status: &Status) {
    let all = status.programs.iter();
    let stopped = all.clone().filter(|p| p.background.is_some() && p.frozen);
    registry.register(
        "background_stopped",
        "Background programs that are stopped now",
        ConstGauge::new(stopped.count() as i64),
    );
    let states = all.filter_map(|p| p.background.as_ref()?.state.as_ref());
    registry.register(
        "background_stops",
        "Stops of the background programs that are managed now",
        ConstGauge::new(states.map(|one| one.stops as i64).sum::<i64>()),
    );
}

/// Registers the actions of the control loop and its cost.
fn register_loop(registry: &mut Registry, status: &Status) {
    for (name, help, count) in [
        (
            "decisions",
            "Iterations of the control loop",
            status.decisions,
        ),
        (
            "actions_failed",
            "Actions that failed",
            status.failed_actions,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
    registry.register_with_unit(
        "loop_cpu",
        "CPU time of the control loop",
        Unit::Seconds,
        ConstCounter::new(status.loop_cpu_seconds),
    );
    registry.register_with_unit(
        "uptime",
        "Time since the start of the daemon",
        Unit::Seconds,
        ConstGauge::new(status.uptime_seconds),
    );
}

/// Registers the predicted effect of the plan; left out if there is no prediction.
fn register_predictions(registry: &mut Registry, status: &Status) {
    for (name, help, value) in [
        (
            "antt_predicted",
            "Predicted mean normalised turnaround time (ANTT) of the present plan",
            status.plan.antt,
        ),
        (
            "antt_time_sharing",
            "Predicted mean normalised turnaround time (ANTT) if all programs share all CPUs",
            status.plan.antt_time_sharing,
        ),
    ] {
        if let Some(value) = value {
            registry.register(name, help, ConstGauge::new(value));
        }
    }
}

const MODES: [(Option<SeatMode>, &str); 4] = [
    (Some(SeatMode::Seated), "seated"),
    (Some(SeatMode::Shared), "shared"),
    (Some(SeatMode::InTurn), "turns"),
    (None, "arriving"),
];

/// Makes the page; `None` if the engine no longer answers.
pub type MakePage = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Upper limit of the time from the accepted connection to the beginning of the last write of the
/// answer. Each read and write waits for the rest of this time.
const SCRAPE_MAX: Duration = Duration::from_secs(5);
/// Upper limit of simultaneous scrapes; further connections are closed.
const SCRAPES_MAX: usize = 16;
/// Number of bytes of a request after which the request is answered without its rest.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// A connection with time limits for each read and write.
trait Timed: Read + Write + Send {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Timed for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Timed for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

/// The socket file of a served page, which is removed when the value is dropped. A file of another
/// daemon at the same path is left as it is.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    id: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            id: Self::id(path)?,
        })
    }

    fn id(path: &Path) -> io::Result<(u64, u64)> {
        let found = std::fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::id(&self.path).is_ok_and(|id| id == self.id) {
            // If the removal fails, the next daemon replaces the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves the page at that address while the process lives. A thread accepts; each scrape is
/// answered on a thread of its own, so that a slow scraper delays no other. Returns the socket
/// file, if the address is a path.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve(address: &Address, make_page: MakePage) -> io::Result<Option<SocketFile>> {
    let mut file = None;
    let mut accept: Box<dyn FnMut() -> io::Result<Box<dyn Timed>> + Send> = match address {
        Address::Unix(path) => {
            let listener = listen_at(path)?;
            file = Some(SocketFile::new(path)?);
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
        Address::Loopback(address) => {
            let listener = TcpListener::bind(address)?;
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
    };
    let make_page = Arc::new(make_page);
    let scrapes = Arc::new(());
    let body = move || {
        loop {
            let Ok(stream) = accept() else {
                // The usual cause of an error is that no file descriptor is left: pause before the
                // next attempt.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if Arc::strong_count(&scrapes) > SCRAPES_MAX {
                continue;
            }
            let (make_page, counted) = (make_page.clone(), scrapes.clone());
            let thread = std::thread::Builder::new().name("scrape".to_owned());
            // If no thread can be started, the connection is closed.
            let _ = thread.spawn(move || {
                // A scraper that disconnected or was too slow needs no answer.
                let _ = answer(stream, &make_page);
                drop(counted);
            });
        }
    };
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(body)?;
    Ok(file)
}

/// Listens at a path; a socket without a listener is replaced. Another file is left as it is, which
/// is an error.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    runtime::check_socket_path(path, "give a shorter path after 'unix:'")?;
    let found = std::fs::symlink_metadata(path);
    if found.is_ok_and(|found| !found.file_type().is_socket()) {
        let text = "the file exists and is no socket: give another path after 'unix:'";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    if std::os::unix::net::UnixStream::connect(path)
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Reads a request's head and answers GET with the page, and HEAD with the head of the same answer,
/// within the limit of [`SCRAPE_MAX`].
fn answer(mut stream: Box<dyn Timed>, make_page: &MakePage) -> io::Result<()> {
    let until = Instant::now() + SCRAPE_MAX;
    let limit = |stream: &dyn Timed| match until.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => stream.limit(left),
        _ => Err(io::ErrorKind::TimedOut.into()),
    };
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < REQUEST_BYTES_MAX {
        limit(&*stream)?;
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    let is_head = head.starts_with(b"HEAD ");
    let is_known = is_head || head.starts_with(b"GET ");
    let (status, page) = match (is_known, make_page()) {
        (false, _) => ("405 Method Not Allowed\r\nAllow: GET, HEAD", String::new()),
        (true, None) => ("503 Service Unavailable", String::new()),
        (true, Some(page)) => ("200 OK", page),
    };
    let body = if is_head { "" } else { &page };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        page.len()
    );
    for piece in reply.as_bytes().chunks(16 * 1024) {
        limit(&*stream)?;
        stream.write_all(piece)?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_that_never_finish_delay_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        let page = Box::new(|| Some("usher_programs 1\n".to_owned()));
        let file = serve(&Address::Unix(path.clone()), page).unwrap();
        let slow: Vec<UnixStream> = (0..SCRAPES_MAX - 1)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        slow.iter()
            .for_each(|mut one| one.write_all(b"GET").unwrap());
        let mut scraper = UnixStream::connect(&path).unwrap();
        // The limit is well below the time that all slow scrapers would take one after another.
        scraper.set_read_timeout(Some(SCRAPE_MAX * 4)).unwrap();
        scraper.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = String::new();
        scraper.read_to_string(&mut reply).unwrap();
        assert!(reply.contains("usher_programs 1"), "{reply}");
        drop(slow);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_of_another_daemon_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        let page = || Box::new(|| Some(String::new()));
        let file = serve(&Address::Unix(path.clone()), page()).unwrap();
        std::fs::rename(&path, dir.path().join("first")).unwrap();
        let _other = serve(&Address::Unix(path.clone()), page()).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn metrics_stay_on_this_machine() {
        assert_eq!("unix:/x".parse(), Ok(Address::Unix("/x".into())));
        for local in ["127.0.0.1:1", "[::1]:9464"] {
            assert!(matches!(local.parse(), Ok(Address::Loopback(_))));
        }
        for bad in [
            "0.0.0.0:9464",
            "10.0.0.1:80",
            "unix:",
            "9464",
            "localhost:9464",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
