"""The first hour on new hardware: is what this set-up reads on this machine what it should read?

Pictures that are the same everywhere (`probes`) are read by the set-up as assessments read them (`reading`),
by transformers alone (`plain`), by other engines and formats (`arms`), and measured by the tools. Each check
compares two such readings by the drift of the letters' log-probabilities, of q in levels and of rank order
(`drift`), against a stated bound, and gives its verdict in one sentence. What ran lies in processes of its
own (`apart`); what is judged knows nothing of models. `certification` runs all of it.
"""
