// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the peer of a unix socket by one request to the kernel's socket diagnosis
//! (`linux/unix_diag.h`), because `/proc` does not contain the peer. Only sockets of this network
//! namespace are found. The kernel answers at once, with at most 1024 bytes; any failure means that
//! no peer is known. The request is not repeated.

use std::os::fd::OwnedFd;

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_UNIX: u8 = 1;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// The cookie that matches any socket with the requested inode.
const NO_COOKIE: u32 = u32::MAX;
/// Sizes of `struct nlmsghdr`, `struct unix_diag_req` and `struct unix_diag_msg` in bytes.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 16;

/// Returns the inode of the peer's socket; `None` if the socket has no peer or the kernel does not
/// report the peer.
pub(super) fn peer_of(inode: u32) -> Option<u32> {
    let kernel: OwnedFd = socket(AddressFamily::NETLINK, SocketType::RAW, Some(SOCK_DIAG)).ok()?;
    send(&kernel, &request(inode), SendFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    let (length, _) = recv(&kernel, answer.as_mut_slice(), RecvFlags::empty()).ok()?;
    peer_in(answer.get(..length)?)
}

fn request(inode: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    bytes.extend(((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // sequence, port
    bytes.extend([AF_UNIX, 0, 0, 0]);
    for word in [u32::MAX, inode, UDIAG_SHOW_PEER, NO_COOKIE, NO_COOKIE] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn peer_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut attributes = answer.get(HEADER_BYTES + ANSWER_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        if kind == UNIX_DIAG_PEER {
            let peer = u32::from_ne_bytes(*attributes.get(4..)?.first_chunk()?);
            return (peer != 0).then_some(peer);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_ends_of_a_pair_are_peers() {
        let (a, b) = UnixStream::pair().unwrap();
        let number = |end: &UnixStream| {
            let path = format!("/proc/self/fd/{}", end.as_raw_fd());
            std::fs::metadata(path).unwrap().ino() as u32
        };
        match peer_of(number(&a)) {
            Some(peer) => {
                assert_eq!(peer, number(&b));
                assert_eq!(peer_of(number(&b)), Some(number(&a)));
            }
            None => usher_skip::skip!("the kernel has no diagnosis of unix sockets"),
        }
        assert_eq!(peer_of(0), None);
    }

    #[test]
    fn truncated_answers_have_no_peer() {
        let mut answer = request(1);
        for length in 0..answer.len() {
            assert_eq!(peer_in(&answer[..length]), None);
        }
        answer.extend([0; 8]);
        assert_eq!(peer_in(&answer), None);
    }
}
