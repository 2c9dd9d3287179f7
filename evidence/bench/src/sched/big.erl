%% SPDX-License-Identifier: MIT OR Apache-2.0
%% All-to-all messages: each of Count processes sends a ping to each, itself included, and
%% answers the pings that it receives. Prints a line when all processes exist, waits for a
%% line, prints a line when all have their answers, and begins anew.
-module(big).
-export([start/1]).

start([Count]) ->
    spawn(fun() -> serve(list_to_integer(Count)) end).

serve(Count) ->
    Parent = self(),
    Members = [spawn_link(fun() -> member(Parent) end) || _ <- lists:seq(1, Count)],
    [Member ! {everyone, Members} || Member <- Members],
    gather(there, Count),
    io:format("ready~n"),
    case io:get_line("") of
        eof -> halt();
        _ -> ok
    end,
    [Member ! go || Member <- Members],
    gather(answered, Count),
    io:format("done~n"),
    serve(Count).

gather(_, 0) -> ok;
gather(Word, Left) ->
    receive Word -> gather(Word, Left - 1) end.

member(Parent) ->
    Members = receive {everyone, Everyone} -> Everyone end,
    Parent ! there,
    receive go -> ok end,
    Self = self(),
    [Member ! {ping, Self} || Member <- Members],
    Count = length(Members),
    converse(Count, Count),
    Parent ! answered.

converse(0, 0) -> ok;
converse(Pings, Pongs) ->
    receive
        {ping, From} -> From ! pong, converse(Pings - 1, Pongs);
        pong -> converse(Pings, Pongs - 1)
    end.
