"""Live measurement: does speculation pay on this server, for this traffic, at this load?

In the order in which data flows: `command` (the options), `modes` (which go together), `sizes` (what holds
where none is given), `plan` (what they ask for) -> `arms` (what is compared), `workloads` (what is asked) ->
`server` (starts and stops vLLM), `served` (one, while it is asked) -> `load` (asks, and times every chunk),
`scrape` (the server's counters) -> `run` (which block comes next), `progress` (how far it is) -> `records`
(what was measured, as kept on disk) -> `measures`, `intervals` -> `loops`, `outputs`, `checks` (do they
count?) -> `goal`, `verdict` (of one arm at one load) -> `recommend`, `checklist`, `warn` -> `summarize`,
which fills a `summary` (all that a report shows) -> `figures` (how it is written) -> `tables`, `drawing`,
`charts`, `page`, `report` (as JSON).

Without a server `closed_loop` replays recordings, and `modelled` makes a `summary` of them with a cost curve,
as `modelled_options` say.
"""
