// SPDX-License-Identifier: MIT OR Apache-2.0
//! Network load of the rig: sends over a pair of interfaces between two network namespaces. The
//! namespaces belong only to this program, so that no other program uses the interfaces. Both
//! namespaces exist until this program ends.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::{ready, report, wait};

const TRIES: Duration = Duration::from_secs(10);

/// Moves the calling thread to a new network namespace.
fn own_network() -> io::Result<i32> {
    // SAFETY: `unshare` takes a number, and changes only the network namespace of the calling
    // thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `gettid` has no argument and cannot fail.
    Ok(unsafe { libc::gettid() })
}

fn ip(words: &str) -> io::Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {words} failed"))),
    }
}

/// Sends over the pair of interfaces. Reports the numbers of bytes sent and received, the sending
/// interface and its namespace.
pub fn send(count: u64, bytes: u64) -> io::Result<()> {
    let (tid_of, tid) = channel();
    let (go, started) = channel();
    let far = std::thread::spawn(move || -> io::Result<u64> {
        tid_of.send(own_network()?).map_err(io::Error::other)?;
        started.recv().map_err(io::Error::other)?;
        let listener = TcpListener::bind("10.254.7.2:7000")?;
        let (mut stream, _) = listener.accept()?;
        let mut room = vec![0; 65536];
        let mut received = 0;
        loop {
            match stream.read(&mut room)? {
                0 => return Ok(received),
                some => received += some as u64,
            }
        }
    });
    own_network()?;
    let tid: i32 = tid.recv().map_err(io::Error::other)?;
    ip(&format!(
        "link add near type veth peer name far netns {tid}"
    ))?;
    ip("addr add 10.254.7.1/30 dev near")?;
    ip("link set near up")?;
    let enter = format!("--net=/proc/{tid}/ns/net");
    for words in ["addr add 10.254.7.2/30 dev far", "link set far up"] {
        let far = Command::new("nsenter")
            .arg(&enter)
            .arg("ip")
            .args(words.split(' '))
            .status()?;
        assert!(far.success(), "{words}");
    }
    go.send(()).map_err(io::Error::other)?;
    let mut stream = connect()?;
    ready()?;
    for _ in 0..count {
        stream.write_all(&vec![7; bytes as usize])?;
    }
    drop(stream);
    let received = far
        .join()
        .map_err(|_| io::Error::other("the process at the far end of the link died"))??;
    let index = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    assert!(index.contains("near"));
    // SAFETY: the name is a C string that outlives the call.
    let index = unsafe { libc::if_nametoindex(c"near".as_ptr()) };
    let network = std::fs::read_link("/proc/thread-self/ns/net")?;
    report(&format!(
        "{} {received} {index} {}",
        count * bytes,
        network.display()
    ))?;
    wait()
}

/// Connects to the far end. The attempt is repeated, because the far end may not listen yet.
fn connect() -> io::Result<TcpStream> {
    let deadline = Instant::now() + TRIES;
    loop {
        match TcpStream::connect("10.254.7.2:7000") {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Sends datagrams, each from a new socket that is closed afterwards, over an interface that no
/// other program uses. Reports the number of datagrams.
pub fn datagrams(count: u64) -> io::Result<()> {
    own_network()?;
    ip("link add near arp off type veth peer name far")?;
    ip("addr add 10.254.8.1/30 dev near")?;
    ip("link set near up")?;
    ip("link set far up")?;
    ready()?;
    for _ in 0..count {
        let socket = UdpSocket::bind("10.254.8.1:0")?;
        socket.connect("10.254.8.2:7000")?;
        socket.send(&[7; 64])?;
    }
    report(&format!("{count}"))?;
    wait()
}
