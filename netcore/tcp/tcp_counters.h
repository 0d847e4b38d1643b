/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_counters: the engine's counters, one row each: name and meaning. Expanded to an enum here and to names where needed. */
#ifndef TCP_TCP_COUNTERS_H
#define TCP_TCP_COUNTERS_H

#define TCP_COUNTER_LIST(X)                                                                                  \
    X(frames_in, "frames handed to the engine")                                                              \
    X(segments_in, "frames that were TCP segments with good checksums")                                      \
    X(drop_short, "frames whose headers do not fit")                                                         \
    X(drop_not_ip, "frames of another Ethernet type")                                                        \
    X(drop_not_tcp, "packets of another protocol")                                                           \
    X(drop_ip_malformed, "packets with impossible IP headers")                                               \
    X(drop_ip_checksum, "packets with a bad IPv4 header checksum")                                           \
    X(drop_ip_address, "packets from or to an address that is no host")                                      \
    X(drop_fragment, "IP fragments")                                                                         \
    X(drop_extension, "packets with refused IPv6 extension headers")                                         \
    X(drop_tcp_malformed, "segments with an impossible data offset or option")                               \
    X(drop_checksum, "segments with a bad checksum")                                                         \
    X(drop_checksum_partial,                                                                                 \
      "segments whose checksum the sender left to hardware (veth peer without tx off)")                      \
    X(drop_no_listener, "segments for a port nobody listens on")                                             \
    X(drop_no_conn, "segments that belong to no connection, answered by RST")                                \
    X(drop_flags, "segments with impossible or no useful flags")                                             \
    X(drop_paws, "segments older than the last timestamp")                                                   \
    X(drop_no_timestamp, "segments without the timestamp that was negotiated")                               \
    X(drop_out_of_window, "segments outside the receive window")                                             \
    X(drop_ack_invalid, "segments with an ACK of what was never sent, or far too old")                       \
    X(drop_no_ack, "segments without ACK on a synchronised connection")                                      \
    X(drop_after_close, "payload that came after the local close")                                           \
    X(refused_conn_limit, "payload refused because the connection holds its share of buffers")               \
    X(refused_pool, "payload refused because all buffers are held")                                          \
    X(refused_hole_limit, "out-of-order payload refused to keep room for what fills the hole")               \
    X(evicted_out_of_order,                                                                                  \
      "out-of-order buffers dropped: for what fills their hole, for others, past a FIN")                     \
    X(syns_in, "SYNs to a listener")                                                                         \
    X(syns_repeated, "SYNs of a handshake under way")                                                        \
    X(syn_conns_full, "SYNs dropped because no connection is free")                                          \
    X(synacks_retransmitted, "SYN+ACKs sent again by the timer")                                             \
    X(syn_timeouts, "handshakes that were never completed")                                                  \
    X(cookies_sent, "SYN cookies sent because the table of half-open connections is full")                   \
    X(cookies_good, "connections made from a SYN cookie")                                                    \
    X(cookies_bad, "ACKs that carried no valid cookie")                                                      \
    X(conns_opened, "connections established")                                                               \
    X(conns_full, "handshakes dropped at the end because no connection was free")                            \
    X(conns_reset_in, "connections reset by the peer")                                                       \
    X(conns_timed_out, "connections given up: data, window or keepalive unanswered")                         \
    X(conns_aborted, "connections reset by us")                                                              \
    X(challenge_acks, "challenge ACKs sent (RFC 5961)")                                                      \
    X(challenge_acks_limited, "challenge ACKs not sent because of the limit")                                \
    X(rst_in_window, "RSTs inside the window but not at its edge")                                           \
    X(rst_ignored, "RSTs outside the window")                                                                \
    X(resets_sent, "RSTs sent")                                                                              \
    X(resets_limited, "RSTs not sent because of the limit")                                                  \
    X(replies_dropped, "answers lost because too many were waiting")                                         \
    X(time_wait_recycled, "TIME-WAITs ended early to make room")                                             \
    X(time_wait_reused, "TIME-WAITs ended by a newer SYN")                                                   \
    X(bytes_in, "payload bytes delivered in order")                                                          \
    X(segments_out_of_order, "segments held because of a hole before them")                                  \
    X(segments_duplicate, "segments that brought nothing new")                                               \
    X(bytes_duplicate, "payload bytes that were there already")                                              \
    X(zero_window_probes_in, "probes of a closed window answered")                                           \
    X(window_updates, "ACKs sent only to reopen the window")                                                 \
    X(ce_in, "segments marked by a congested router")                                                        \
    X(packets_out, "frames emitted")                                                                         \
    X(acks_out, "frames without payload, SYN, FIN or RST")                                                   \
    X(bytes_out, "payload bytes sent, repeats included")                                                     \
    X(bytes_retransmitted, "payload bytes sent again")                                                       \
    X(rto_fired, "retransmission timeouts")                                                                  \
    X(fast_recoveries, "losses found by duplicate ACKs or SACK")                                             \
    X(ecn_reductions, "congestion window reductions because of ECN echo")                                    \
    X(window_probes_out, "probes of the peer's closed window")                                               \
    X(keepalives_out, "keepalive probes")                                                                    \
    X(mtu_reductions, "connections whose packets were made smaller (ICMP)")                                  \
    X(black_holes, "connections whose packets were made smaller after repeated timeouts")                    \
    X(too_big_ignored, "ICMP too-big messages that match nothing in flight")                                 \
    X(sack_ignored, "SACK blocks outside what was sent")

#define TCP_COUNTER_ENUM(name, help) TCP_COUNTER_##name,
enum tcp_counter { TCP_COUNTER_LIST(TCP_COUNTER_ENUM) TCP_COUNTERS };
#undef TCP_COUNTER_ENUM

/* "drop_short" and so on; NULL past the end. */
const char *tcp_counter_name(enum tcp_counter counter);
const char *tcp_counter_help(enum tcp_counter counter);

#endif
