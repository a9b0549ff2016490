#!/bin/sh
# A worker that tells what it does, in $DIARY, a folder on a drive. One line, in one write, for each thing:
#     rank attempt pid word time
# Whoever is called, by a new word in the file call, says here-<word>.
# Whatever is left of a worker holds its rank's lock, so that a second one that runs beside it says so itself.
say() { echo "$RANK $ASTRAEUS_ATTEMPT $$ $1 $(date +%s.%N)" >>"$DIARY/lines"; }
exec 9>>"$DIARY/rank-$RANK"
flock --nonblock 9 || say overlap
trap 'say asked; until [ -e "$DIARY/let-go" ]; do sleep 0.1; done; say end; exit 3' TERM
say start
answered=
until [ -e "$DIARY/finish" ]; do
    { read -r call <"$DIARY/call"; } 2>/dev/null && [ "$call" != "$answered" ] && say "here-$call" && answered=$call
    sleep 0.1
done
say end
